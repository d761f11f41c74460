"""What `report` prints: the verdict, what to change, and where the time of a token goes.

At most 70 lines on a terminal of 80 columns and more; `outline` has the rest.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import wrap

from spark_prof.analyzers.breakdown import KernelRow
from spark_prof.analyzers.classify.classifier import short_name
from spark_prof.analyzers.facts import told_first_uses
from spark_prof.analyzers.finding import Finding, TypedCommand, command, commented, source_word
from spark_prof.analyzers.model import Report
from spark_prof.analyzers.recorded_command import PLACE
from spark_prof.analyzers.report_notes import about
from spark_prof.analyzers.step_time import ROUNDING_US
from spark_prof.analyzers.views.waterfall import waterfall_of
from spark_prof.dashboards import cells
from spark_prof.dashboards.report_verdict import (
    MOST_FINDINGS,
    shown_findings,
    verdict_of,
)
from spark_prof.dashboards.section import (
    COLUMNS,
    LINES,
    Document,
    Section,
    commands,
    document,
    listed,
    table,
)
from spark_prof.dashboards.sections import (
    audit_section,
    layer_section,
    request_section,
    run_section,
    speculation_section,
    token_section,
    waterfall_section,
)
from spark_prof.dashboards.sections.token_section import at_batch
from spark_prof.dashboards.sections.waterfall_section import name_of
from spark_prof.dashboards.units import clean, counted, microseconds, share, shorten
from spark_prof.rules.components import part_of
from spark_prof.vocabulary import EXCHANGES, FUSES

_FINDINGS, _CAVEATS = MOST_FINDINGS, 2
"""How many of each are shown."""
_ROWS = (
    (7, 7, MOST_FINDINGS),
    (6, 7, MOST_FINDINGS),
    (6, 6, MOST_FINDINGS),
    (6, 5, MOST_FINDINGS),
    (5, 5, MOST_FINDINGS),
    (5, 4, MOST_FINDINGS),
    (4, 4, MOST_FINDINGS),
    (3, 4, MOST_FINDINGS),
    (3, 3, MOST_FINDINGS),
    (2, 3, MOST_FINDINGS),
    (3, 4, MOST_FINDINGS - 1),
)
"""Kernels, parts and findings that are shown, from the first on until all fits on one screen."""
_BROKEN_TITLE = 12  # characters from which on a title above narrow figures has two lines
_LONGEST_TEXT = 157
_LONGEST_LINE, _LONGEST_RUN = 150, 240
_WHOLE = " (and more: --section recording)"
_LONGEST_BROKEN = 157
_ENDS = (". ", "; ", ": ", ", ", " (")
_LEAST_TEXT = 40  # characters below which a beginning says too little
_LONGEST_NAME = 44
_LONGEST_ROLE = 25
_UNITS = {"tensor-core": "tensor", "cuda-core": "CUDA", "copy": "copy"}
_MUCH_OVERLAP = 0.005  # of a step: less changes no figure that is shown
_LEAST = 0.01  # of the kernel time: kernels with less are not listed


def short_report(report: Report) -> Document:
    """The document of one screen, in the order in which a person in a hurry asks.

    How fast, what was recorded, what to change, where the time goes, and what not to believe.
    """
    above = (
        listed("verdict", "", _verdict(report)),
        listed("run", "Recorded", _recorded(report), _LONGEST_RUN),
        token_section.by_batch(report),
    )
    findings = shown_findings(report.findings)
    issues = audit_section.short_known_issues(report.audit)
    below = (issues, listed("caveats", "Caveats", _caveats(report)), _more_section(report))
    for kernels, parts, most in _ROWS:
        change_sections = changes(findings[:most], _LONGEST_TEXT, report.findings)
        tables = (_parts(report, parts), _kernels(report, kernels))
        sections = (*above, *change_sections, *tables, *below)
        page = document(run_section.title(report), (), sections, verdict=verdict_of(report))
        if _height(page) <= LINES:
            break
    return page


def _height(page: Document) -> int:
    """How many lines a document takes on a terminal, its title included."""

    def wrapped(text: str) -> int:
        return max(len(wrap(text, COLUMNS)), 1)

    lines = wrapped(page.title) + (wrapped(page.verdict) if page.verdict else 0)
    for section in page.sections:
        lines += (1 + wrapped(section.title)) * bool(section.title)
        lines += sum(map(wrapped, section.intro))
        if titles := [len(column.title) for column in section.columns if column.title]:
            lines += 2 + (max(titles) > _BROKEN_TITLE)
        prose = section.columns[0].kind == "prose"
        lines += sum(wrapped(str(row[0])) if prose else 1 for row in section.rows)
    return lines


def changes(
    findings: Sequence[Finding], longest: int | None = None, every: Sequence[Finding] = ()
) -> Iterator[Section]:
    """A section for each finding: what it would bring at most, what was found, what to type.

    Args:
        findings: in the order in which they are shown.
        longest: characters of a sentence, and no advice beside what was measured; None for all.
        every: all findings; those that are not shown are named where their command is.
    """
    has_note = False
    for number, finding in enumerate(findings, 1):
        gain = "gain unknown" + (f", its time is in {finding.within}" if finding.within else "")
        if finding.ms_per_token is not None:
            gain = f"at most {microseconds(1000 * finding.ms_per_token)} of each token"
        texts = [finding.text, finding.fix, finding.measured]
        typed = [finding.command]
        if longest is None and finding.verify != finding.command:
            typed.append(commented(finding.verify, "whether a change helped"))
        if longest is not None:
            texts = [abridged(text, longest) for text in (texts[0], texts[2] or texts[1])]
        if other_findings := _with_same_command(finding, findings, every):
            texts.append(f"The same command is for {other_findings}.")
        title = f"{number}. {finding.key}: {gain}"
        yield commands(f"findings-{number}", title, typed, texts, (finding.recorded_as,))
        if not has_note and (note := elsewhere(finding.command)):
            has_note = True
            yield listed("elsewhere", "", (note,))


def _with_same_command(
    finding: Finding, screen_findings: Sequence[Finding], every: Sequence[Finding]
) -> str:
    """The findings that are not shown because they end in this one's command."""
    siblings = [
        o for o in every if o.command and o.command == finding.command and o not in screen_findings
    ]
    named, before = [], ""
    for other in siblings[:_FINDINGS]:
        # Of several of one rule the first has its name: far-from-memory-floor:qkv, o_proj.
        name = other.key.partition(":")[2] if other.id == before else other.key
        gain = other.ms_per_token
        before = other.id
        named.append(name if gain is None else f"{name} ({microseconds(1000 * gain)})")
    rest = [f"{len(siblings) - _FINDINGS} more"] if len(siblings) > _FINDINGS else []
    return ", ".join([*named, *rest])


def elsewhere(typed: TypedCommand) -> str:
    """Says that a command names a path of another machine; empty where all its paths exist here."""
    if PLACE in typed.started:
        return f"The recording leaves out where the model is: put its path for {PLACE}."
    missing_paths = [
        word for word in typed.started if word.startswith("/") and not Path(word).exists()
    ]
    return (
        f"{missing_paths[0]} is a path of the machine that was recorded: replace it with yours."
        if missing_paths
        else ""
    )


def short_role(role: str, longest: int) -> str:
    """A role without its beginning or, where that says whose it is, without its middle.

    short_role("drafter.self_attn.kv_b_proj", 24) == "drafter...attn.kv_b_proj"
    """
    if len(role) <= longest:
        return role
    head = f"{part_of(role)}..."
    return f"{head}{role[len(head) - longest :]}"


def abridged(text: str, longest: int) -> str:
    """The whole sentences of a text's beginning, in so many characters; else its first clauses.

    Only a clause that is longer by itself is cut, at a word.
    """
    text = clean(text)
    for end in _ENDS:
        if len(text) <= longest:
            break
        beginning = text[: longest + 1].rpartition(end)[0]
        if len(beginning) >= _LEAST_TEXT:
            text = f"{beginning.rstrip('.,;:')}."
    return text if len(text) <= longest else f"{text[: longest - 3].rpartition(' ')[0]} ..."


def _verdict(report: Report) -> Iterator[str]:
    yield waterfall_section.speed_and_distance(report)
    yield speculation_section.line(report)
    yield from request_section.in_a_line(report)
    yield from told_first_uses(report.steps)
    if clock := run_section.left_out(report):
        yield f"{clock}."
    if broken := run_section.caveats(report):
        more_checks = f" {counted(len(broken) - 1, 'more check')} failed." if broken[1:] else ""
        yield f"{abridged(broken[0], _LONGEST_BROKEN)}{more_checks}"


def _recorded(report: Report) -> Iterator[str]:
    yield run_section.in_a_line(report, brief=True)
    yield from filter(None, (run_section.parallel_run(report), run_section.swapped(report)))
    typed = clean(report.run.command or report.run.source)
    if len(typed) > _LONGEST_LINE:
        begin = typed[: _LONGEST_LINE - len(_WHOLE)].rpartition(" ")[0]
        typed = f"{begin}{_WHOLE}" if begin else typed
    yield typed


def _parts(report: Report, most: int) -> Section:
    """The waterfall, its smallest parts together."""
    waterfall = waterfall_of(report)
    parts = [part for part in waterfall.parts if abs(part.us) >= ROUNDING_US]
    largest = sorted(parts, key=lambda part: -abs(part.us))[:most]
    small = [part for part in parts if part not in largest]
    rows = [(name_of(part, waterfall.of), part.us) for part in parts if part in largest]
    if small:
        rows.append((counted(len(small), "smaller part"), sum(part.us for part in small)))
    columns = (
        cells.Text("Part", lambda row: row[0]),
        cells.Time(waterfall_section.column_of(waterfall), lambda row: row[1]),
        cells.Share("Share", lambda row: row[1] / waterfall.us),
        cells.Bar("", lambda row: max(row[1] / waterfall.us, 0.0) if row is not rows[-1] else 0.0),
    )
    rows.append(("measured", waterfall.us))
    filled_rows = rows if waterfall.us and len(rows) > 1 else ()
    intro = waterfall_section.what_components_lack(waterfall) if filled_rows else ()
    return table(
        "parts", waterfall_section.title(waterfall) + at_batch(report), filled_rows, columns, intro
    )


@dataclass(frozen=True)
class _KernelLine:
    """One line of the table of kernels."""

    role: str
    name: str
    us: float
    bound_us: float | None = None
    runs_on: str = ""
    evidence: str = ""


def _kernels(report: Report, most: int) -> Section:
    """What a decode step's kernel time goes to, or the run's where nothing tells a step's."""
    phase = report.decode_roofline
    rows = list(_of_roles(report) if phase else _of_run(report))
    whole = sum(row.us for row in rows)
    listed_rows = [row for row in rows[:most] if row.us >= _LEAST * whole]
    rest, rows_left = whole - sum(row.us for row in listed_rows), len(rows) - len(listed_rows)
    if rows_left:
        listed_rows.append(_KernelLine("rest", counted(rows_left, "more row"), rest))
    columns = (
        cells.Text("Role", "role"),
        cells.Name("Kernel", "name"),
        cells.Time("A step" if phase else "In all", "us"),
        cells.Time("Lower bound", "bound_us", optional=True),
        cells.Share("Of bound", lambda row: row.bound_us / row.us if row.bound_us else None),
        cells.Text("Runs on", "runs_on"),
        cells.Text("Evidence", "evidence", optional=True),
    )
    unit = "Operators" if run_section.on_cpu(report) else "Kernels"
    title = (
        f"{unit} of a decode step{at_batch(report)}" if phase else f"{unit} that take the most time"
    )
    coverage = report.coverage
    title += (
        f"; layer and component proven {share(coverage.proven)}, guessed {share(coverage.guessed)}"
    )
    return table("decode_kernels", title, listed_rows, columns, _overlap(report))


def _overlap(report: Report) -> tuple[str, ...]:
    """Why kernels take more than their parts above; empty where they do not."""
    step = next(iter(report.typical_steps), None)
    if step is None or step.overlap_us <= _MUCH_OVERLAP * step.step_us:
        return ()
    overlap = microseconds(step.overlap_us)
    return (
        "Kernels that ran beside others have their whole time here, "
        f"{overlap}{' a step' if report.run.tells_steps else ''} more than above, where an instant "
        "is shared.",
    )


def _of_roles(report: Report) -> Iterator[_KernelLine]:
    phase = report.decode_roofline
    rows = sorted(phase.rows if phase else (), key=lambda row: -row.step_us)
    kernels = {(row.component, row.name): row for row in report.kernels}
    names = Counter((row.role or row.component, short_name(row.name)) for row in rows)
    for row in rows:
        role, name = _brief(row.role) or f"({row.component})", short_name(row.name)
        part = row.product or row.what
        if names[row.role or row.component, name] > 1 and part:
            name = f"{name} ({part})"
        kernel = kernels.get((row.component, row.name))
        yield _KernelLine(
            short_role(role, _LONGEST_ROLE),
            shorten(name, _LONGEST_NAME),
            row.step_us,
            row.least_us,
            _unit(kernel),
            row.owner_basis,
        )


def _unit(row: KernelRow | None) -> str:
    """What computes a kernel, in short: tensor bf16, CUDA; empty where nothing tells."""
    name = _UNITS.get(row.engine, "") if row else ""
    return " ".join(filter(None, (name, row.precision if row and name else ""))) or ""


def _brief(role: str) -> str:
    """The role, of a collective with the last part alone of what it serves and nothing fused.

    _brief("mlp.experts → all_reduce + input_layernorm") == "experts → all_reduce"
    """
    served, exchanges, how = role.partition(EXCHANGES)
    how = how.partition(FUSES)[0]
    return f"{served.rpartition('.')[2]}{exchanges}{how}" if exchanges else role


def _of_run(report: Report) -> Iterator[_KernelLine]:
    for row in sorted(report.kernels, key=lambda row: -row.us):
        name = shorten(short_name(row.name), _LONGEST_NAME)
        yield _KernelLine(row.component, name, row.us, None, _unit(row), row.basis)


def _caveats(report: Report) -> Iterator[str]:
    """What changes the verdict beside what fails; then how much more there is to know."""
    intro = run_section.recording(report).intro
    # What was left out of every figure goes before all.
    left_out = [note for note in report.notes if about(note) == "left out"]
    notes = [note for note in report.notes if about(note) == "figures"]
    texts = [*left_out, *intro, *_unproven(report), *notes]
    caveats = [abridged(text, _LONGEST_TEXT) for text in texts[:_CAVEATS]]
    if len(texts) > _CAVEATS:
        left = len(texts) - _CAVEATS
        caveats[-1] = f"{caveats[-1].rstrip('.')}. And {left} more: --section notes."
    yield from caveats


def _unproven(report: Report) -> Iterator[str]:
    """Which weights are read by kernels that nobody knows, and how much of a step that is."""
    phase = report.decode_roofline
    if phase is None or not phase.step_us:
        return
    least = _LEAST * (phase.floor_us or 0.0)
    names = [floor.component for floor in phase.unplaced if floor.us > least]
    us = sum(row.step_us for row in phase.rows_by_component() if row.component in names)
    if us:
        yield (
            f"Which kernels read the weights of {', '.join(names)} is not proven: "
            f"{share(us / phase.step_us)} of a step has no bound and no finding of its own."
        )


def _more_section(report: Report) -> Section:
    source, title = source_word(report.run.source), "More"
    typed = [command("spark-prof", "report", source, "--all"),
             command("spark-prof", "classify", source),
             command("spark-prof", "explore", source)]  # fmt: skip
    if apart := layer_section.furthest(report):
        layer, us, usual = apart
        typed.insert(0, command("spark-prof", "report", source, "--layer", str(layer)))
        title = (
            f"More; layer {layer} is furthest from layers like it, {microseconds(us)} against "
            f"{microseconds(usual)}"
        )
    return commands("more", title, typed)

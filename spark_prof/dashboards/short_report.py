"""What `report` prints: the verdict, what to change, and where the time of a token goes.

At most 70 lines on a terminal of 80 columns and more; `outline` has the rest.
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from spark_prof.analyzers.classify.classifier import short_name
from spark_prof.analyzers.finding import Finding
from spark_prof.analyzers.model import Report
from spark_prof.analyzers.views.waterfall import waterfall_of
from spark_prof.dashboards import cells
from spark_prof.dashboards.section import Document, Section, commands, document, listed, table
from spark_prof.dashboards.sections import layer_section, run_section, waterfall_section
from spark_prof.dashboards.sections.waterfall_section import name_of
from spark_prof.dashboards.units import clean, counted, microseconds, share, shorten

_FINDINGS, _KERNELS, _PARTS, _CAVEATS = 3, 7, 7, 2
"""How many of each are shown."""
_LONGEST_TEXT = 157
_LONGEST_LINE, _LONGEST_RUN = 150, 240
_WHOLE = " (and more: --section recording)"
_LONGEST_BROKEN = 157
_ENDS = (". ", "; ", ": ", ", ", " (")
_LEAST_TEXT = 40  # characters below which a beginning says too little
_LONGEST_NAME = 44
_LONGEST_ROLE = 24
_LEAST = 0.01  # of the kernel time: kernels with less are not listed
_CHANGES_NOTHING = ("The first ", "Only steps without any prefill", "The window closed")
"""Beginnings of notes that describe the recording and take nothing from its figures."""


def short_report(report: Report) -> Document:
    """The document of one screen, in the order in which a person in a hurry asks.

    How fast, what was recorded, what to change, where the time goes, and what not to believe.
    """
    return document(
        run_section.title(report),
        (),
        (
            listed("verdict", "", _verdict(report)),
            listed("run", "Recorded", _recorded(report), _LONGEST_RUN),
            *changes(_worth_most(report.findings), _LONGEST_TEXT),
            _parts(report),
            _kernels(report),
            listed("caveats", "Caveats", _caveats(report)),
            _more(report),
        ),
    )


def changes(findings: Sequence[Finding], longest: int | None = None) -> Iterator[Section]:
    """A section for each finding: what it would bring at most, what was found, what to type.

    Args:
        findings: in the order in which they are shown.
        longest: characters of a sentence, and no advice beside what was measured; None for all.
    """
    told = False
    for number, found in enumerate(findings, 1):
        gain = "gain unknown"
        if found.ms_per_token is not None:
            gain = f"at most {microseconds(1000 * found.ms_per_token)} of each token"
        texts = [found.text, found.fix, found.measured]
        typed = [found.command]
        if longest is None and found.verify != found.command:
            typed.append(f"{found.verify}  # whether a change helped")
        if longest is not None:
            texts = [abridged(text, longest) for text in (texts[0], texts[2] or texts[1])]
        yield commands(f"findings-{number}", f"{number}. {found.key}: {gain}", typed, texts)
        if not told and (note := elsewhere(found.command)):
            told = True
            yield listed("elsewhere", "", (note,))


def elsewhere(command: str) -> str:
    """That a command names a path of the machine that recorded; empty where all paths are here."""
    words = command.partition(" -- ")[2].split()
    gone = [word for word in words if word.startswith("/") and not Path(word).exists()]
    return f"{gone[0]} is a path of the machine that was recorded: put yours." if gone else ""


def abridged(text: str, longest: int) -> str:
    """The whole sentences of a text's beginning, in so many characters; else its first clauses.

    Only a clause that is longer by itself is cut, at a word.
    """
    text = clean(text)
    for end in _ENDS:
        if len(text) <= longest:
            break
        kept = text[: longest + 1].rpartition(end)[0]
        if len(kept) >= _LEAST_TEXT:
            text = f"{kept.rstrip('.,;:')}."
    return text if len(text) <= longest else f"{text[: longest - 3].rpartition(' ')[0]} ..."


def _worth_most(findings: Sequence[Finding]) -> list[Finding]:
    """The first findings, of those with the same command the one that would bring most."""
    distinct = {found.command or found.text: found for found in reversed(findings)}
    return [found for found in findings if found in distinct.values()][:_FINDINGS]


def _verdict(report: Report) -> Iterator[str]:
    yield from waterfall_section.speed_and_distance(report)
    if clock := run_section.left_out(report):
        yield f"{clock}."
    if broken := run_section.caveats(report):
        others = f" {counted(len(broken) - 1, 'more check')} failed." if broken[1:] else ""
        yield f"{abridged(broken[0], _LONGEST_BROKEN)}{others}"


def _recorded(report: Report) -> Iterator[str]:
    yield run_section.in_a_line(report, brief=True)
    command = clean(report.run.command or report.run.source)
    if len(command) > _LONGEST_LINE:
        begin = command[: _LONGEST_LINE - len(_WHOLE)].rpartition(" ")[0]
        command = f"{begin}{_WHOLE}" if begin else command
    yield command


def _parts(report: Report) -> Section:
    """The waterfall, its smallest parts together."""
    found = waterfall_of(report)
    parts = [part for part in found.parts if part.us > 0]
    kept = sorted(parts, key=lambda part: -part.us)[:_PARTS]
    small = [part for part in parts if part not in kept]
    rows = [(name_of(part), part.us) for part in parts if part in kept]
    if small:
        rows.append((counted(len(small), "smaller part"), sum(part.us for part in small)))
    columns = (
        cells.Text("Part", lambda row: row[0]),
        cells.Time(f"A {found.of}", lambda row: row[1]),
        cells.Share("Share", lambda row: row[1] / found.us),
        cells.Bar("", lambda row: row[1] / found.us if row is not rows[-1] else 0.0),
    )
    rows.append(("measured", found.us))
    shown = rows if found.us and len(rows) > 1 else ()
    return table("parts", waterfall_section.title(found), shown, columns)


@dataclass(frozen=True)
class _Kernel:
    """One line of the table of kernels."""

    role: str
    name: str
    us: float
    bound_us: float | None = None
    runs_on: str = ""
    evidence: str = ""


def _kernels(report: Report) -> Section:
    """What a decode step's kernel time goes to, or the run's where nothing tells a step's."""
    phase = report.decode_roofline
    found = list(_of_roles(report) if phase else _of_run(report))
    whole = sum(row.us for row in found)
    listed_rows = [row for row in found[:_KERNELS] if row.us >= _LEAST * whole]
    rest, more = whole - sum(row.us for row in listed_rows), len(found) - len(listed_rows)
    if more:
        listed_rows.append(_Kernel("rest", counted(more, "more row"), rest))
    columns = (
        cells.Text("Role", "role"),
        cells.Name("Kernel", "name"),
        cells.Time("A step" if phase else "In all", "us"),
        cells.Time("Lower bound", "bound_us"),
        cells.Share("Of it", lambda row: row.bound_us / row.us if row.bound_us else None),
        cells.Text("Runs on", "runs_on", optional=True),
        cells.Text("Evidence", "evidence"),
    )
    unit = "Operators" if run_section.on_cpu(report) else "Kernels"
    title = f"{unit} of a decode step" if phase else f"{unit} that take the most time"
    known = report.coverage
    title += f"; owner proven {share(known.proven)}, guessed {share(known.guessed)}"
    return table("decode_kernels", title, listed_rows, columns)


def _of_roles(report: Report) -> Iterator[_Kernel]:
    phase = report.decode_roofline
    rows = sorted(phase.rows if phase else (), key=lambda row: -row.step_us)
    kernels = {(row.component, row.name): row for row in report.kernels}
    names = Counter((row.role or row.component, short_name(row.name)) for row in rows)
    for row in rows:
        role, name = row.role or f"({row.component})", short_name(row.name)
        part = row.what.partition(":")[0]
        if names[row.role or row.component, name] > 1 and part:
            name = f"{name} ({part})"
        kernel = kernels.get((row.component, row.name))
        yield _Kernel(
            role if len(role) <= _LONGEST_ROLE else f"...{role[3 - _LONGEST_ROLE :]}",
            shorten(name, _LONGEST_NAME),
            row.step_us,
            row.bound_us,
            " ".join(filter(None, (kernel.engine, kernel.precision))) if kernel else "",
            row.owner_basis,
        )


def _of_run(report: Report) -> Iterator[_Kernel]:
    for row in sorted(report.kernels, key=lambda row: -row.us):
        name, unit = shorten(short_name(row.name), _LONGEST_NAME), row.precision or ""
        yield _Kernel(row.component, name, row.us, None, f"{row.engine} {unit}".strip(), row.basis)


def _caveats(report: Report) -> Iterator[str]:
    """What changes the verdict beside what fails; then how much more there is to know."""
    intro = run_section.recording(report).intro
    notes = [note for note in report.notes if not note.startswith(_CHANGES_NOTHING)]
    found = [*intro, *_unproven(report), *notes]
    shown = [abridged(text, _LONGEST_TEXT) for text in found[:_CAVEATS]]
    if len(found) > _CAVEATS:
        more = len(found) - _CAVEATS
        shown[-1] = f"{shown[-1].rstrip('.')}. And {more} more: --section notes."
    yield from shown


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


def _more(report: Report) -> Section:
    source = shlex.quote(report.run.source)
    typed, title = [f"spark-prof report {source} --all", f"spark-prof explore {source}"], "More"
    if apart := layer_section.furthest(report):
        layer, us, usual = apart
        typed.insert(0, f"spark-prof report {source} --layer {layer}")
        title = (
            f"More; layer {layer} is furthest from layers like it, {microseconds(us)} against "
            f"{microseconds(usual)}"
        )
    return commands("more", title, typed)

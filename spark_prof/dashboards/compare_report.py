"""Draws a comparison of recordings in every format: whole, or as one screen.

Its JSON is read by other people's scripts: keys may be added, none goes. Times are microseconds and
shares fractions of 1; an interval that is not known is null.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from operator import itemgetter
from typing import Any

from spark_prof.analyzers.comparing.comparison import (
    ComparedRecording,
    Comparison,
    PhaseComparison,
    SetupDifference,
    StepPart,
)
from spark_prof.analyzers.comparing.obstacles import change_of, outcome_of
from spark_prof.analyzers.comparing.thresholds import ThresholdResult
from spark_prof.analyzers.finding import TypedCommand, command, source_word
from spark_prof.dashboards import cells, compare_gate, compare_sections, section
from spark_prof.dashboards.chart_compare import compare_figures
from spark_prof.dashboards.compare_answer import LONGEST_NAME, answer, headline, one_step
from spark_prof.dashboards.compare_gate import (
    LETTERS,
    SideNames,
    by_share,
    reason,
    shown_part,
    span_of_share,
    verdict,
)
from spark_prof.dashboards.render import Layout, draw
from spark_prof.dashboards.render.terminal import first_rows, fitting
from spark_prof.dashboards.section import Document, Section, commands, listed, table
from spark_prof.dashboards.short_report import abridged
from spark_prof.dashboards.units import MISSING, clean, count, microseconds, shorten

_ROWS = (
    (8, 8, 5, 4), (8, 6, 5, 3), (7, 5, 4, 3), (6, 5, 3, 3), (5, 4, 3, 2), (4, 3, 2, 2),
    (3, 2, 1, 1), (2, 1, 0, 1),
)  # fmt: skip
"""Parts, kernels, settings and caveats that are shown, from the first on until all fits."""
_MOST_SIDES, _MOST_SIZES, _MOST_LIMITS, _MOST_ENGINES = 6, 4, 8, 3
_LONGEST_CAVEAT = 157
_MOST_ANSWERS = 25
_OF_MEDIANS = ("residual", "median step")  # rows of the parts that the steps above have
_CACHES = ("kv_cache_max_concurrency", "kv_cache_size_tokens", "num_gpu_blocks", ".served_model")


def short_comparison(
    comparisons: Sequence[Comparison],
    names: Sequence[SideNames],
    limits: Sequence[tuple[ThresholdResult, SideNames]],
    width: int,
) -> Document:
    """The document of one screen.

    Args:
        names: what the sides of each comparison are called.
        limits: what became of each limit, with the sides that it is about.
        width: columns of the page.
    """
    return fitting(_documents(comparisons, names, limits), width)


def _documents(
    comparisons: Sequence[Comparison],
    names: Sequence[SideNames],
    limits: Sequence[tuple[ThresholdResult, SideNames]],
) -> Iterator[Document]:
    first = comparisons[0]
    for parts, kernels, settings, caveats in _ROWS:
        sections: list[Section] = []
        if limits:
            gate = compare_gate.gate(_worst_first(limits))
            sections.append(first_rows(replace(gate, intro=()), _MOST_LIMITS, "limits"))
        if len(comparisons) > 1:
            sections += [_answers(comparisons)]
        else:
            sides = compare_sections.compared(comparisons)
            sections.append(first_rows(sides, min(_MOST_SIDES, 2 + parts), "recordings"))
            sections += _one_comparison(first, names[0], parts, kernels, settings)
        sections.append(_caveats(comparisons, caveats))
        sections.append(commands("more", "More", _more_section(comparisons)))
        yield section.document(answer(first), headline(first), sections)


def _worst_first(
    limits: Sequence[tuple[ThresholdResult, SideNames]],
) -> list[tuple[ThresholdResult, SideNames]]:
    order = ("failed", "undecided", "passed")
    return sorted(limits, key=lambda limit: order.index(limit[0].outcome))


def _answers(comparisons: Sequence[Comparison]) -> Section:
    """A line a side: what it is beside the reference."""
    rows = []
    for comparison in comparisons:
        outcome = outcome_of(comparison)
        phase = comparison.phase(outcome.phase)
        assert phase is not None
        change = outcome.change or change_of(phase, outcome.basis)
        figures = (microseconds(change.a), microseconds(change.b))
        change_texts = (by_share(change), span_of_share(change), verdict(change))
        row_title = f"kernels, {one_step(phase)}" if "kernels" in outcome.basis else one_step(phase)
        if outcome.obstacle:
            change_texts = (MISSING, MISSING, "not comparable")
        rows.append((comparison.names[1], row_title, *figures, *change_texts))
    columns = (
        cells.Text("Side", lambda row: clean(row[0])),
        cells.Text("Of", lambda row: row[1], optional=True),
        cells.Formatted(clean(comparisons[0].names[0]), itemgetter(2)),
        cells.Formatted("Side's", itemgetter(3)),
        cells.Formatted("Change", itemgetter(4)),
        cells.Text("95 %", lambda row: row[5], optional=True),
        cells.Text("It is", lambda row: row[6]),
    )
    intro = (f"{comparisons[0].names[0]} is the reference.",)
    return first_rows(table("compare_answers", "Answers", rows, columns, intro), _MOST_ANSWERS)


def _one_comparison(
    comparison: Comparison, names: SideNames, parts: int, kernels: int, settings: int
) -> Iterator[Section]:
    outcome = outcome_of(comparison)
    phase = comparison.phase(outcome.phase)
    assert phase is not None
    other_phases = [
        other_phase
        for other_phase in comparison.phases
        if other_phase is not phase and not other_phase.obstacle
    ]
    sizes = compare_sections.steps(phase, names)
    yield first_rows(sizes, _MOST_SIZES + (len(phase.sizes) > 1), "sizes")
    yield from (_one_line(other_phase, names) for other_phase in other_phases)
    yield _largest_parts(phase, names, parts, kernels="kernels" in outcome.basis)
    differing = compare_sections.kernels(_by_change(phase), names)
    yield first_rows(replace(differing, intro=()), kernels)
    if outcome.phase != "prefill":
        changed = compare_sections.engines(phase, names)
        yield first_rows(replace(changed, intro=()), _MOST_ENGINES)
    setup = replace(comparison, setup=tuple(sorted(comparison.setup, key=_is_small)))
    yield first_rows(replace(compare_sections.setup(setup, names), intro=()), settings, "settings")


def _is_small(setting: SetupDifference) -> bool:
    """Whether a setting is one that every start chooses anew, or repeats another."""
    return any(part in setting.name for part in _CACHES)


def _one_line(phase: PhaseComparison, names: SideNames) -> Section:
    """The steps of another phase as one row, without its parts."""
    section = compare_sections.steps(phase, names)
    return replace(first_rows(section, 1, "rows"), rows=section.rows[-1:])


def _largest_parts(
    phase: PhaseComparison, names: SideNames, most: int, *, kernels: bool
) -> Section:
    """The parts that changed most, or took most where no change is told, and their sums."""

    def weight(part: StepPart) -> float:
        change = part.change
        return max(change.a, change.b) if phase.obstacle else abs(change.us)

    largest = sorted(phase.parts, key=weight)[-most:]
    smaller = {shown_part(part.name) for part in phase.parts if part not in largest}
    section = compare_sections.components(phase, names, kernels)
    rows = tuple(row for row in section.rows if row[0] not in {*smaller, *_OF_MEDIANS})
    intro = (f"And {count(len(smaller))} smaller parts: --all.",) if smaller else ()
    return replace(section, rows=rows, intro=intro)


def _by_change(phase: PhaseComparison) -> PhaseComparison:
    """The kernels by how much they changed."""
    return replace(phase, kernels=tuple(sorted(phase.kernels, key=lambda k: -abs(k.change.us))))


def _caveats(comparisons: Sequence[Comparison], most: int) -> Section:
    texts = list(dict.fromkeys(note for comparison in comparisons for note in comparison.notes))
    caveats = [abridged(text, _LONGEST_CAVEAT) for text in texts[:most]]
    if len(texts) > most:
        caveats[-1] = f"{caveats[-1].rstrip('.')}. And {len(texts) - most} more: --all."
    return listed("compare_notes", "Caveats", caveats)


def _more_section(comparisons: Sequence[Comparison]) -> Iterator[TypedCommand]:
    sides = (comparisons[0].sides[0], *(comparison.sides[1] for comparison in comparisons))
    sources = [source_word(",".join(recording.source for recording in side)) for side in sides]
    yield command("spark-prof", "compare", *sources, "--all")
    if all(len(side) == 1 for side in sides):
        yield command("spark-prof", "explore", *sources)


@dataclass(frozen=True)
class CompareRun:
    """What one run of `compare` found."""

    comparisons: tuple[Comparison, ...]  # each recording against the reference, at least one
    gate: tuple[tuple[ThresholdResult, ...], ...] = ()
    """For each of them what became of the limits; empty without limits."""


def render_comparison(compared: CompareRun, layout: Layout, *, whole: bool = False) -> str:
    """Draws a comparison in a format.

    Args:
        whole: every section; without it, and where none is asked for, text and Markdown have one
            screen.
    """

    def drawn() -> Document:
        if layout.kind == "html" or whole or layout.bounds.sections:
            return document(compared)
        return short_comparison(
            compared.comparisons, _names(compared), _limits(compared), layout.width
        )

    record, figures = partial(_record, compared), partial(compare_figures, compared.comparisons)
    return draw(drawn, record, layout, figures)


def document(compared: CompareRun) -> Document:
    """The document that text, Markdown and HTML draw; its title is the answer."""
    first = compared.comparisons[0]
    return section.document(answer(first), headline(first), _sections(compared))


def _names(compared: CompareRun) -> list[SideNames]:
    """What the sides of each comparison are called."""
    return [
        SideNames(shorten(a, LONGEST_NAME), shorten(b, LONGEST_NAME), letter)
        for letter, comparison in zip(LETTERS[1:], compared.comparisons, strict=False)
        for a, b in [comparison.names]
    ]


def _limits(compared: CompareRun) -> list[tuple[ThresholdResult, SideNames]]:
    return [
        (limit, names)
        for names, checked in zip(_names(compared), compared.gate, strict=False)
        for limit in checked
    ]


def _sections(compared: CompareRun) -> Iterator[Section]:
    pairs = list(zip(_names(compared), compared.comparisons, strict=True))
    limits = _limits(compared)
    if limits:
        yield compare_gate.gate(limits)
    yield compare_sections.compared(compared.comparisons)
    for names, comparison in pairs:
        for table_section in _of_one(comparison, names):
            yield (
                replace(table_section, title=f"{names.b}: {table_section.title}")
                if len(pairs) > 1
                else table_section
            )


def _of_one(comparison: Comparison, names: SideNames) -> Iterator[Section]:
    for phase in comparison.phases:
        yield compare_sections.steps(phase, names)
        yield compare_sections.components(phase, names, all(comparison.eager))
        yield compare_sections.layers(phase, names)
        yield compare_sections.kernels(phase, names)
        if phase.phase != "prefill":
            yield compare_sections.engines(phase, names)
    yield compare_sections.setup(comparison, names)
    yield compare_sections.whole_figures(comparison, names)
    yield compare_sections.findings(comparison, names)
    yield compare_sections.notes(comparison, names)


SCHEMA = 1  # raised when a key changes its meaning or goes; new keys do not raise it


def _record(compared: CompareRun) -> dict[str, Any]:
    first = compared.comparisons[0]
    return {
        "schema": SCHEMA,
        "kind": "spark-prof compare",
        "reference": _sides(first.sides[0]),
        "comparisons": [
            {
                "side": letter,
                "answer": answer(comparison),
                "outcome": outcome_of(comparison),
                "other": _sides(comparison.sides[1]),
                "assumed_start_share": comparison.assumed or None,
                "phases": comparison.phases,
                "setup": comparison.setup,
                "notes": comparison.notes,
            }
            for letter, comparison in zip(LETTERS[1:], compared.comparisons, strict=False)
        ],
        "gate": [
            {
                "limit": limit.expression.text,
                "side": letter,
                "outcome": limit.outcome,
                "kind": limit.reading.kind,
                "change": limit.reading.change,
                "reason": reason(limit, comparison.names),
            }
            for letter, comparison, checked in zip(
                LETTERS[1:], compared.comparisons, compared.gate, strict=False
            )
            for limit in checked
        ],
    }


def _sides(recordings: Sequence[ComparedRecording]) -> dict[str, Any]:
    """The first recording of a side, and the sources of all."""
    report = recordings[0].report
    return {
        "source": recordings[0].source,
        "recordings": [recording.source for recording in recordings],
        "run": report.run,
        "gpu": report.gpu,
        "steps": report.steps.count,
        "coverage": report.coverage,
        "conversions_share": report.conversions.share,
        "findings": [finding.id for finding in report.findings],
        "finding_keys": [finding.key for finding in report.findings],
    }

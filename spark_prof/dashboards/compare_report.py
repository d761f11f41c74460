"""Draws a comparison of recordings in every format.

Its JSON is read by other people's scripts: keys may be added, none goes. Times are microseconds and
shares fractions of 1; an interval that is not known is null.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from spark_prof.analyzers.comparing.comparison import ComparedRecording, Comparison
from spark_prof.analyzers.comparing.obstacles import outcome_of
from spark_prof.analyzers.comparing.thresholds import ThresholdResult
from spark_prof.dashboards import compare_gate, compare_sections, section
from spark_prof.dashboards.chart_compare import compare_figures
from spark_prof.dashboards.compare_answer import LONGEST_NAME, answer, headline
from spark_prof.dashboards.compare_gate import LETTERS, SideNames, reason
from spark_prof.dashboards.compare_short import short_comparison
from spark_prof.dashboards.render import Layout, draw
from spark_prof.dashboards.section import Document, Section
from spark_prof.dashboards.units import shorten


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

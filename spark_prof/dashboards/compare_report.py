"""Draws a comparison of recordings in every format."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from spark_prof.analyzers.comparing.gate.verdict import Checked
from spark_prof.analyzers.comparing.model import Comparison, PhaseComparison
from spark_prof.dashboards import compare_gate, compare_parts, compare_setup
from spark_prof.dashboards.compare_words import LETTERS, by_share, by_us
from spark_prof.dashboards.formats import clean, microseconds
from spark_prof.dashboards.render import draw
from spark_prof.dashboards.section import Document, Section, without_empty_columns

if TYPE_CHECKING:
    import plotly.graph_objects as go


@dataclass(frozen=True)
class Compared:
    """What one run of `compare` found.

    Attributes:
        found: each recording against the reference, at least one.
        gate: for each of them what became of the limits; empty without limits.
    """

    found: tuple[Comparison, ...]
    gate: tuple[tuple[Checked, ...], ...] = ()


def render_comparison(compared: Compared, kind: str, width: int = 100, color: bool = False) -> str:
    """Draws a comparison in a format."""

    def figures() -> Mapping[str, go.Figure]:
        from spark_prof.dashboards import chart_compare

        return chart_compare.figures(compared.found)

    if kind == "json":
        from spark_prof.dashboards import compare_json

        return compare_json.render(compared)
    return draw(lambda: document(compared), dict, kind, width, color, figures)


def document(compared: Compared) -> Document:
    """The document that text, Markdown and HTML draw; its title is the answer."""
    sections = list(_sections(compared))
    return Document(
        answer(compared.found[0]),
        _headline(compared.found[0]),
        tuple(without_empty_columns(section) for section in sections if section.rows),
    )


def answer(found: Comparison, b: str = "b") -> str:
    """What the comparison comes to, in one sentence."""
    phase = found.phases[0]
    change = phase.like
    step = f"a {clean(phase.phase)} {phase.unit}" if phase.phase != "unknown" else "a step"
    figures = f"{step} takes {microseconds(change.a)} on a, {microseconds(change.b)} on {b}"
    if any(found.further):
        figures += f", means of {' and '.join(str(len(side)) for side in found.sides)} recordings"
    if not change.sure:
        within = max(map(abs, change.shares))
        unseen = (
            f"; a change within {100 * within:.1f} % is undecided" if math.isfinite(within) else ""
        )
        return f"no difference between a and {b} is shown: {figures}{unseen}"
    word = "slower" if change.us > 0 else "faster"
    return f"{b} is {by_share(change).lstrip('+-')} {word} than a: {figures}"


def phase_sections(phase: PhaseComparison, b: str = "b") -> Iterator[Section]:
    """The sections about one phase."""
    yield compare_parts.steps(phase, b)
    yield compare_parts.components(phase, b)
    yield compare_parts.layers(phase, b)
    yield compare_parts.kernels(phase, b)
    if phase.phase != "prefill":
        yield compare_parts.engines(phase, b)


def _sections(compared: Compared) -> Iterator[Section]:
    pairs = list(zip(LETTERS[1:], compared.found, strict=False))
    limits = [
        (each, letter)
        for (letter, _), checked in zip(pairs, compared.gate, strict=False)
        for each in checked
    ]
    if limits:
        yield compare_gate.gate([each for each, _ in limits], [letter for _, letter in limits])
    yield compare_setup.compared(compared.found)
    for letter, found in pairs:
        for section in _of_one(found, letter):
            several = len(pairs) > 1
            yield replace(section, title=f"{letter}: {section.title}") if several else section


def _of_one(found: Comparison, b: str) -> Iterator[Section]:
    for phase in found.phases:
        yield from phase_sections(phase, b)
    yield compare_setup.setup(found, b)
    yield compare_setup.others(found, b)
    yield compare_setup.findings(found, b)
    yield compare_setup.notes(found, b)


def _headline(found: Comparison) -> tuple[tuple[str, str], ...]:
    phase = found.phases[0]
    slower = next((part for part in phase.parts if part.change.sure and part.change.us > 0), None)
    faster = next(
        (part for part in reversed(phase.parts) if part.change.sure and part.change.us < 0), None
    )
    step = f"the median {phase.phase} {phase.unit}" if phase.phase != "unknown" else "a step"
    figures = [(step, f"{by_us(phase.like.us)}, {by_share(phase.like)}")]
    if slower:
        figures.append((f"{slower.name}, the most slowed", by_us(slower.change.us)))
    if faster:
        figures.append((f"{faster.name}, the most sped up", by_us(faster.change.us)))
    return tuple(figures)

"""Draws a comparison of recordings in every format.

Its JSON is read by other people's scripts: keys may be added, none goes. Times are microseconds and
shares fractions of 1; an interval that is not known is null.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import TYPE_CHECKING, Any

from spark_prof.analyzers.comparing.comparison import Comparison, PhaseComparison, Side
from spark_prof.analyzers.comparing.noise import Change
from spark_prof.analyzers.comparing.thresholds import Checked
from spark_prof.dashboards import compare_gate, compare_sections
from spark_prof.dashboards.compare_gate import LETTERS, by_share, by_us, reason
from spark_prof.dashboards.render import draw
from spark_prof.dashboards.render.json_report import write
from spark_prof.dashboards.section import Document, Section, without_empty_columns
from spark_prof.dashboards.units import clean, microseconds

if TYPE_CHECKING:
    import plotly.graph_objects as go


@dataclass(frozen=True)
class Compared:
    """What one run of `compare` found."""

    found: tuple[Comparison, ...]  # each recording against the reference, at least one
    gate: tuple[tuple[Checked, ...], ...] = ()
    """For each of them what became of the limits; empty without limits."""


def render_comparison(compared: Compared, kind: str, width: int = 100, color: bool = False) -> str:
    """Draws a comparison in a format."""

    def figures() -> Mapping[str, go.Figure]:
        from spark_prof.dashboards import chart_compare

        return chart_compare.compare_figures(compared.found)

    if kind == "json":
        return render(compared)
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
    yield compare_sections.steps(phase, b)
    yield compare_sections.components(phase, b)
    yield compare_sections.layers(phase, b)
    yield compare_sections.kernels(phase, b)
    if phase.phase != "prefill":
        yield compare_sections.engines(phase, b)


def _sections(compared: Compared) -> Iterator[Section]:
    pairs = list(zip(LETTERS[1:], compared.found, strict=False))
    limits = [
        (each, letter)
        for (letter, _), checked in zip(pairs, compared.gate, strict=False)
        for each in checked
    ]
    if limits:
        yield compare_gate.gate([each for each, _ in limits], [letter for _, letter in limits])
    yield compare_sections.compared(compared.found)
    for letter, found in pairs:
        for section in _of_one(found, letter):
            several = len(pairs) > 1
            yield replace(section, title=f"{letter}: {section.title}") if several else section


def _of_one(found: Comparison, b: str) -> Iterator[Section]:
    for phase in found.phases:
        yield from phase_sections(phase, b)
    yield compare_sections.setup(found, b)
    yield compare_sections.others(found, b)
    yield compare_sections.findings(found, b)
    yield compare_sections.notes(found, b)


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


SCHEMA = 1
"""Raised when a key changes its meaning or goes; new keys do not raise it."""


def render(compared: Compared) -> str:
    """Writes a comparison, the same text for the same recordings."""
    first = compared.found[0]
    return write(
        {
            "schema": SCHEMA,
            "kind": "spark-prof compare",
            "reference": _sides(first.sides[0]),
            "comparisons": [
                _comparison(found, letter)
                for letter, found in zip(LETTERS[1:], compared.found, strict=False)
            ],
            "gate": [
                _checked(each, letter)
                for letter, checked in zip(LETTERS[1:], compared.gate, strict=False)
                for each in checked
            ],
        }
    )


def _comparison(found: Comparison, letter: str) -> dict[str, Any]:
    return {
        "side": letter,
        "other": _sides(found.sides[1]),
        "assumed_start_share": found.assumed or None,
        "phases": [_phase(phase) for phase in found.phases],
        "setup": [asdict(setting) for setting in found.setup],
        "notes": list(found.notes),
    }


def _sides(recordings: Sequence[Side]) -> dict[str, Any]:
    """The first recording of a side, and the sources of all."""
    side = recordings[0]
    report = side.report
    return {
        "source": side.source,
        "recordings": [each.source for each in recordings],
        "run": asdict(report.run),
        "gpu": asdict(report.gpu),
        "steps": report.steps.count,
        "coverage": asdict(report.coverage),
        "conversions_share": report.conversions.share,
        "findings": [each.id for each in report.findings],
    }


def _phase(phase: PhaseComparison) -> dict[str, Any]:
    # `asdict` turns the changes that lie within into their fields; what they imply is added.
    value: dict[str, Any] = _with_shares(asdict(phase))
    for part, row in zip(phase.kernels, value["kernels"], strict=True):
        row["where"] = part.where
    return value


def _with_shares(value: Any) -> Any:
    if isinstance(value, Mapping):
        if value.keys() == _CHANGE:
            return _change(value)
        return {key: _with_shares(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_with_shares(entry) for entry in value]
    return value


_CHANGE = {each.name for each in fields(Change)}


def _change(value: Mapping[str, Any]) -> dict[str, Any]:
    """A change; with several recordings a side also the figure of each."""
    change = Change(**value)
    found = {key: value[key] for key in ("a", "b", "us", "low", "high")}
    found |= {"share": change.share(change.us), "sure": change.sure}
    found["share_low"], found["share_high"] = change.shares
    if max(map(len, change.figures)) > 1:
        for side, figures in zip(("a", "b"), value["figures"], strict=True):
            found[f"values_{side}"] = [each["value"] for each in figures]
    return found


def _checked(checked: Checked, letter: str) -> dict[str, Any]:
    return {
        "limit": checked.expression.text,
        "side": letter,
        "outcome": checked.outcome,
        "kind": checked.reading.kind,
        "change": _with_shares(asdict(checked.reading.change)),
        "reason": reason(checked, letter),
    }

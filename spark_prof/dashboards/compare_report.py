"""Draws a comparison of recordings in every format.

Its JSON is read by other people's scripts: keys may be added, none goes. Times are microseconds and
shares fractions of 1; an interval that is not known is null.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from spark_prof.analyzers.comparing.comparison import Comparison, PhaseComparison, Side
from spark_prof.analyzers.comparing.noise import Change
from spark_prof.analyzers.comparing.thresholds import Checked, summed
from spark_prof.analyzers.findings.rule import runs_eagerly
from spark_prof.analyzers.lookup import mapping_in
from spark_prof.analyzers.step_time import GAPS
from spark_prof.dashboards import compare_gate, compare_sections, section
from spark_prof.dashboards.chart_compare import compare_figures
from spark_prof.dashboards.compare_gate import LETTERS, Names, by_share, by_us, reason, shown_part
from spark_prof.dashboards.render import Layout, draw
from spark_prof.dashboards.section import Document, Section
from spark_prof.dashboards.units import clean, microseconds, shorten

_LONGEST_NAME = 40  # characters of what a side is called


@dataclass(frozen=True)
class Compared:
    """What one run of `compare` found."""

    found: tuple[Comparison, ...]  # each recording against the reference, at least one
    gate: tuple[tuple[Checked, ...], ...] = ()
    """For each of them what became of the limits; empty without limits."""


def render_comparison(compared: Compared, layout: Layout) -> str:
    """Draws a comparison in a format."""
    drawn, record = partial(document, compared), partial(_record, compared)
    figures = partial(compare_figures, compared.found)
    return draw(drawn, record, layout, figures)


def document(compared: Compared) -> Document:
    """The document that text, Markdown and HTML draw; its title is the answer."""
    first = compared.found[0]
    return section.document(answer(first), _headline(first), _sections(compared))


def answer(found: Comparison) -> str:
    """What the comparison comes to, in one sentence, with the sides by name.

    No speed is told of different models. Where both sides ran eagerly, or the typical step says
    nothing, kernels are compared: launches are the host's.
    """
    names, phase = [shorten(name, _LONGEST_NAME) for name in found.names], found.phases[0]
    step = f"a {clean(phase.phase)} {phase.unit}" if phase.phase != "unknown" else "a step"

    def both(change: Change) -> str:
        return f"{microseconds(change.a)} on {names[0]}, {microseconds(change.b)} on {names[1]}"

    if models := different_models(found):
        taken = f"{step} takes {both(phase.like)}"
        return f"{names[0]} and {names[1]} are different models ({models}): {taken}"
    change, why = basis(found)
    figures = f"{step} takes {both(change)}"
    if why:
        figures = f"{step}'s kernels take {both(change)} (launches left out: {why})"
    elif eager := [n for n, side in zip(names, found.sides, strict=True) if _eager(side)]:
        figures += f" ({eager[0]} ran eagerly; the kernels alone {both(kernels_of(phase))})"
    if max(map(len, found.sides)) > 1:
        figures += f", means of {' and '.join(str(len(side)) for side in found.sides)} recordings"
    if not change.sure:
        within = max(map(abs, change.shares))
        unseen = (
            f"; a change within {100 * within:.1f} % is undecided" if math.isfinite(within) else ""
        )
        return f"no difference between {names[0]} and {names[1]} is shown: {figures}{unseen}"
    word = "slower" if change.us > 0 else "faster"
    return f"{names[1]} is {by_share(change).lstrip('+-')} {word} than {names[0]}: {figures}"


def basis(found: Comparison) -> tuple[Change, str]:
    """What the headline rests on, and why that is the kernels alone; empty where it is the step."""
    phase = found.phases[0]
    if all(map(_eager, found.sides)):
        return kernels_of(phase), "both ran eagerly"
    if phase.like.sure and not phase.typical.sure:
        return kernels_of(phase), "the typical steps do not differ"
    return phase.like, ""


def _eager(side: Sequence[Side]) -> bool:
    return runs_eagerly(side[0].report)


def different_models(found: Comparison) -> str:
    """In what the models differ so that no speed can be compared; empty where nothing tells."""
    for key in ("architectures", "num_hidden_layers", "hidden_size"):
        a, b = (mapping_in(side.facts, "model_config").get(key) for side in (found.a, found.b))
        if a is not None and b is not None and a != b:
            shown = [", ".join(map(str, one)) if isinstance(one, list) else one for one in (a, b)]
            word = key.removeprefix("num_").replace("_", " ")
            return clean(f"{word}: {shown[0]} and {shown[1]}")
    return ""


def kernels_of(phase: PhaseComparison) -> Change:
    """The change of a typical step's kernels and copies, without what waits for the host."""
    return summed([part.change for part in phase.parts if part.name not in GAPS])


def _sections(compared: Compared) -> Iterator[Section]:
    pairs = [
        (Names(shorten(a, _LONGEST_NAME), shorten(b, _LONGEST_NAME), letter), found)
        for letter, found in zip(LETTERS[1:], compared.found, strict=False)
        for a, b in [found.names]
    ]
    limits = [
        (each, names)
        for (names, _), checked in zip(pairs, compared.gate, strict=False)
        for each in checked
    ]
    if limits:
        yield compare_gate.gate(limits)
    yield compare_sections.compared(compared.found)
    for names, found in pairs:
        for each in _of_one(found, names):
            yield replace(each, title=f"{names.b}: {each.title}") if len(pairs) > 1 else each


def _of_one(found: Comparison, names: Names) -> Iterator[Section]:
    for phase in found.phases:
        yield compare_sections.steps(phase, names)
        yield compare_sections.components(phase, names)
        yield compare_sections.layers(phase, names)
        yield compare_sections.kernels(phase, names)
        if phase.phase != "prefill":
            yield compare_sections.engines(phase, names)
    yield compare_sections.setup(found, names)
    yield compare_sections.others(found, names)
    yield compare_sections.findings(found, names)
    yield compare_sections.notes(found, names)


def _headline(found: Comparison) -> tuple[tuple[str, str], ...]:
    if different_models(found):
        return ()
    phase, (change, why) = found.phases[0], basis(found)
    parts = [part for part in phase.parts if not (why and part.name in GAPS)]
    slower = next((part for part in parts if part.change.sure and part.change.us > 0), None)
    faster = next((p for p in reversed(parts) if p.change.sure and p.change.us < 0), None)
    step = f"the median {phase.phase} {phase.unit}" if phase.phase != "unknown" else "a step"
    figures = [
        (f"the kernels of {step}" if why else step, f"{by_us(change.us)}, {by_share(change)}")
    ]
    if slower:
        figures.append((f"{shown_part(slower.name)}, the most slowed", by_us(slower.change.us)))
    if faster:
        figures.append((f"{shown_part(faster.name)}, the most sped up", by_us(faster.change.us)))
    return tuple(figures)


SCHEMA = 1  # raised when a key changes its meaning or goes; new keys do not raise it


def _record(compared: Compared) -> dict[str, Any]:
    first = compared.found[0]
    return {
        "schema": SCHEMA,
        "kind": "spark-prof compare",
        "reference": _sides(first.sides[0]),
        "comparisons": [
            {
                "side": letter,
                "answer": answer(found),
                "other": _sides(found.sides[1]),
                "assumed_start_share": found.assumed or None,
                "phases": found.phases,
                "setup": found.setup,
                "notes": found.notes,
            }
            for letter, found in zip(LETTERS[1:], compared.found, strict=False)
        ],
        "gate": [
            {
                "limit": each.expression.text,
                "side": letter,
                "outcome": each.outcome,
                "kind": each.reading.kind,
                "change": each.reading.change,
                "reason": reason(each, found.names),
            }
            for letter, found, checked in zip(
                LETTERS[1:], compared.found, compared.gate, strict=False
            )
            for each in checked
        ],
    }


def _sides(recordings: Sequence[Side]) -> dict[str, Any]:
    """The first recording of a side, and the sources of all."""
    report = recordings[0].report
    return {
        "source": recordings[0].source,
        "recordings": [each.source for each in recordings],
        "run": report.run,
        "gpu": report.gpu,
        "steps": report.steps.count,
        "coverage": report.coverage,
        "conversions_share": report.conversions.share,
        "findings": [each.id for each in report.findings],
        "finding_keys": [each.key for each in report.findings],
    }

"""Draws the result of `spark-prof ab` in every format."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import msgspec

from spark_prof.ab.result import (
    AbOutcome,
    effect_of,
    exit_code,
    outcome_of,
    to_json,
    with_detectable,
)
from spark_prof.dashboards import ab_attribution, ab_sections, section
from spark_prof.dashboards.ab_answer import answer, doubts, headline
from spark_prof.dashboards.ab_short import short_ab
from spark_prof.dashboards.chart_compare import ab_figures
from spark_prof.dashboards.render import Layout, draw
from spark_prof.dashboards.render.limits import bounded_record
from spark_prof.dashboards.section import Document, Section


def render_ab(result: AbOutcome, layout: Layout, *, whole: bool = True, source: str = "") -> str:
    """Draws a result, of a run that finished or did not, in a format.

    Args:
        whole: every section; without it, and where none is asked for, text and Markdown have one
            screen.
        source: the file that it was read from; empty where it has none yet.
    """
    if layout.kind == "json":
        encoded = msgspec.json.encode(bounded_record(_record(result), layout.bounds))
        return msgspec.json.format(encoded, indent=2).decode() + "\n"
    drawn = partial(document, result, each_layer=layout.kind == "html", source=source)
    if layout.kind != "html" and not (whole or layout.bounds.sections):
        drawn = partial(short_ab, result, layout.width, source)
    return draw(drawn, dict, layout, lambda: ab_figures(result))


def _record(result: AbOutcome) -> dict[str, Any]:
    """The result as its file holds it, by the rule of this version, and what it comes to."""
    runs = tuple(with_detectable(run, result.aa) for run in result.runs)
    record: dict[str, Any] = msgspec.json.decode(to_json(replace(result, runs=runs)))
    return record | {
        "answer": answer(result),
        "outcome": outcome_of(result),
        "exit_code": exit_code(result),
    }


def document(result: AbOutcome, *, each_layer: bool, source: str = "") -> Document:
    """The document that text, Markdown and HTML draw; its title is the answer."""
    sections = _sections(result, each_layer, source)
    return section.document(answer(result), headline(result), sections, doubts(result))


def _sections(result: AbOutcome, each_layer: bool, source: str) -> Iterator[Section]:
    yield ab_sections.compared(result)
    yield ab_sections.gains(result)
    yield ab_sections.serving(result, source)
    yield ab_sections.itself(result)
    yield ab_sections.gate(result.gates)
    yield ab_sections.text(result)
    yield ab_sections.reasons(result)
    yield ab_sections.layers(result)
    for attribution in result.attributions:
        has_gain = any(
            effect_of(run, result.aa) in ("faster", "slower")
            for run in result.runs
            if (run.phase, run.requests) == ("decode", attribution.batch_size)
        )
        yield from ab_attribution.sections(attribution, has_gain=has_gain, each_layer=each_layer)
    yield ab_sections.swaps(result)
    yield ab_sections.costs(result)
    yield ab_sections.left_out(result)
    yield ab_sections.missing(result)
    yield ab_sections.setup(result)

"""Draws the result of `spark-prof ab` in every format."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import msgspec

from spark_prof.ab.result import (
    AbOutcome,
    chosen_run,
    effect_of,
    exit_code,
    outcome_of,
    to_json,
    with_detectable,
)
from spark_prof.dashboards import ab_attribution, ab_sections, section
from spark_prof.dashboards.ab_answer import answer, doubts, headline
from spark_prof.dashboards.chart_compare import ab_figures
from spark_prof.dashboards.render import Layout, draw
from spark_prof.dashboards.render.limits import bounded_record
from spark_prof.dashboards.render.terminal import first_rows, fitting
from spark_prof.dashboards.section import Document, Section, listed

_ROWS = (14, 10, 7, 5, 3)
_TEXTS = (400, 250, 160)
"""Characters of a line about what is missing; as many as fit."""


def short_ab(result: AbOutcome, width: int, source: str = "") -> Document:
    """The fullest document about a result that fits on one screen.

    short_ab(read_result(path), width=100).title
    """
    return fitting(
        (_document(result, rows, longest, source) for longest in _TEXTS for rows in _ROWS), width
    )


def _document(result: AbOutcome, rows: int, longest: int, source: str) -> Document:
    return section.document(
        answer(result),
        headline(result),
        _short_sections(result, rows, longest, source),
        doubts(result),
    )


def _short_sections(result: AbOutcome, rows: int, longest: int, source: str) -> Iterator[Section]:
    yield ab_sections.compared(result)
    yield first_rows(replace(ab_sections.gains(result), intro=()), rows)
    yield ab_sections.serving(result, source)
    yield first_rows(_gate(result), rows)
    yield first_rows(replace(ab_sections.text(result, floor=False), intro=()), rows)
    yield first_rows(ab_sections.reasons(result), rows)
    yield from _where(result, rows)
    yield first_rows(_fell_back(ab_sections.swaps(result)), rows)
    yield first_rows(listed("ab_missing", "Not measured", result.missing, longest), rows)
    yield _more_section()


def _gate(result: AbOutcome) -> Section:
    """Side against side; what bounds are, and a against itself, is for those who ask."""
    gate = replace(ab_sections.gate(result.gates), title="The same answers", intro=())
    compared = tuple(row for row in gate.rows if str(row[-1]))
    return replace(gate, rows=compared)


def _where(result: AbOutcome, rows: int) -> Iterator[Section]:
    """Where the gain of the answer's batch size came from, and what of that is not proven."""
    run = chosen_run(result)
    for attribution in result.attributions:
        if run is None or (run.phase, run.requests) != ("decode", attribution.batch_size):
            continue
        has_gain = effect_of(run, result.aa) in ("faster", "slower")
        components = ab_attribution.components(attribution, has_gain=has_gain)
        *parts, step = components.rows
        places = [at for at, column in enumerate(components.columns) if not column.optional]
        largest = sorted(range(len(parts)), key=lambda at: -abs(_saved_us(parts[at])))[:rows]
        largest_parts = [part for at, part in enumerate(parts) if at in largest]
        intro = (
            (f"{len(parts) - len(largest_parts)} more: --all.",)
            if len(largest_parts) < len(parts)
            else ()
        )
        yield replace(components, rows=(*largest_parts, step), intro=intro).only(places)
        proof = ab_attribution.proof(attribution, has_gain=has_gain)
        open_ones = tuple(row for row in proof.rows if str(row[1]) != "yes")
        proven = len(proof.rows) - len(open_ones)
        tally = f"{proven} of {len(proof.rows)} claims hold"
        title = f"{proof.title}: {tally}{'; the others:' if open_ones else ''}"
        if open_ones:
            yield replace(proof, title=title, rows=open_ones)
        else:
            yield listed(proof.id, "Proof", [f"{tally}."])


def _saved_us(row: tuple[section.Cell, ...]) -> float:
    value = getattr(row[3], "value", None)
    return float(value) if value is not None else 0.0


def _fell_back(swaps: Section) -> Section:
    """The swaps that vLLM's own kernels took the place of; none is nothing to say."""
    rows = tuple(row for row in swaps.rows if str(row[4]) not in ("", "0"))
    return replace(swaps, title="Swaps that fell back", rows=rows)


def _more_section() -> Section:
    lines = ["Bounds, each layer, kernels, costs and how it was measured: --all, and report.html."]
    return listed("more", "More", lines)


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

"""One screen of a result of `spark-prof ab`: the answer, its proof in short, what is missing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from spark_prof.ab.result import AbOutcome, chosen_run, effect_of
from spark_prof.dashboards import ab_attribution, ab_sections, section
from spark_prof.dashboards.ab_answer import answer, doubts, headline
from spark_prof.dashboards.one_screen import first_rows, fitting
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
        answer(result), headline(result), _sections(result, rows, longest, source), doubts(result)
    )


def _sections(result: AbOutcome, rows: int, longest: int, source: str) -> Iterator[Section]:
    yield ab_sections.compared(result)
    yield first_rows(replace(ab_sections.gains(result), intro=()), rows)
    yield ab_sections.serving(result, source)
    yield first_rows(_gate(result), rows)
    yield first_rows(replace(ab_sections.text(result, floor=False), intro=()), rows)
    yield first_rows(ab_sections.reasons(result), rows)
    yield from _where(result, rows)
    yield first_rows(_fell_back(ab_sections.swaps(result)), rows)
    yield first_rows(listed("ab_missing", "Not measured", result.missing, longest), rows)
    yield _more()


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


def _more() -> Section:
    lines = ["Bounds, each layer, kernels, costs and how it was measured: --all, and report.html."]
    return listed("more", "More", lines)

"""Sections about load generators: what their clients saw, and whether the engine's steps agree."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from spark_prof.analyzers.clients.model import ClientRow, Comparison
from spark_prof.analyzers.model import Report
from spark_prof.dashboards.formats import (
    MISSING,
    clean,
    count,
    counted,
    microseconds,
    shorten,
)
from spark_prof.dashboards.section import Column, Section
from spark_prof.traces.benchmarks.result import Latency

__all__ = ["agreement", "remarks", "runs"]

_MOST_RUNS = 50
_LONGEST_NAME = 48
_LONGEST_PROSE = 1000

_QUANTITIES: Mapping[str, str] = MappingProxyType(
    {"output_token": "TPOT", "chunk": "ITL", "first_token": "TTFT"}
)
_BESIDE = (
    "Beside TPOT stands the engine's time per output token, beside ITL a step that decodes, beside "
    "TTFT the steps that read a prompt: what TTFT has beyond them is queueing, tokenizing and HTTP."
)
_TITLE = "Does the client see the same?"


def agreement(report: Report) -> Section:
    """Puts what the clients saw beside what the engine's steps took."""
    shown = report.clients[:_MOST_RUNS]
    rows = tuple(
        (name(row) if first else "", *_compared(comparison))
        for row in shown
        for first, comparison in _numbered(row.comparisons)
    )
    columns = (
        Column("Run"),
        Column("Of"),
        Column("Client", "number"),
        Column("Engine", "number"),
        Column("Client off by", "number"),
        Column("Elsewhere", "number"),
    )
    said = _said(shown)
    if shown and not rows:
        # Nothing could be compared: why not is what there is to say.
        return Section("clients", _TITLE, (Column("", "prose"),), tuple((s,) for s in said))
    return Section("clients", _TITLE, columns, rows, (*said, _BESIDE))


def runs(found: Sequence[ClientRow]) -> Section:
    """Lists what the clients saw, run by run."""
    rows = tuple(
        (
            clean(row.tool),
            shorten(clean(row.model), _LONGEST_NAME),
            shorten(clean(row.label), _LONGEST_NAME),
            MISSING if row.concurrency is None else count(row.concurrency),
            MISSING if row.completed is None else count(row.completed),
            MISSING if not row.failed else count(row.failed),
            _rate(row.output_throughput),
            microseconds(row.ttft.typical),
            microseconds(row.tpot.typical),
            microseconds(row.tpot.p99),
            microseconds(row.itl.typical),
            MISSING if row.tokens_per_chunk is None else f"{row.tokens_per_chunk:.2f}",
            microseconds(row.e2e.typical),
        )
        for row in found[:_MOST_RUNS]
    )
    columns = (
        Column("Tool"),
        Column("Model", optional=True),
        Column("Run"),
        Column("At once", "number"),
        Column("Requests", "number"),
        Column("Failed", "number"),
        Column("Tokens/s", "number"),
        Column("TTFT", "number"),
        Column("TPOT", "number"),
        Column("TPOT p99", "number", optional=True),
        Column("ITL", "number"),
        Column("Tokens a chunk", "number", optional=True),
        Column("Whole request", "number", optional=True),
    )
    return Section("client_runs", "What the clients saw", columns, rows, tuple(_intro(found)))


def remarks(found: Sequence[ClientRow], lost: Sequence[str]) -> Section:
    """Lists what the results do not tell and what to know of the runs, once each."""
    said = dict.fromkeys([*lost, *(text for row in found for text in row.sentences)])
    rows = tuple((shorten(clean(text), _LONGEST_PROSE),) for text in said)
    return Section("notes", "Before believing these figures", (Column("", "prose"),), rows)


def name(row: ClientRow) -> str:
    """What tells a run from the others."""
    parts = [row.tool, row.label]
    if row.concurrency:
        parts.append(f"{row.concurrency} at a time")
    return shorten(clean(", ".join(filter(None, parts))), _LONGEST_NAME)


def _said(found: Sequence[ClientRow]) -> list[str]:
    """The sentences of each run, those left out that an earlier one had."""
    said, known = [], set[str]()
    for row in found:
        new = [text for text in row.sentences if text not in known]
        known.update(new)
        text = " ".join(new) or "The same as above."
        said.append(shorten(clean(f"{name(row)}: {text}"), _LONGEST_PROSE))
    return said


def _numbered(found: Sequence[Comparison]) -> list[tuple[bool, Comparison]]:
    return [(index == 0, comparison) for index, comparison in enumerate(found)]


def _compared(found: Comparison) -> tuple[str, ...]:
    median = ", median" if found.statistic == "median" else ""
    return (
        f"{_QUANTITIES[found.quantity]}{median}",
        microseconds(found.client),
        microseconds(found.engine),
        f"{100 * found.difference:+.1f} %",
        microseconds(found.client - found.engine) if found.client > found.engine else MISSING,
    )


def _intro(found: Sequence[ClientRow]) -> list[str]:
    """Says what the columns are, and which figures nobody gave."""
    intro = [
        "Means, or medians where a tool gives no mean. TPOT is per token after the first, ITL per "
        "chunk of the stream."
    ]
    derived = {
        (title, latency.derived)
        for row in found
        for title, latency in _latencies(row)
        if latency.derived
    }
    intro += [f"{title} is derived: {how}." for title, how in sorted(derived)]
    if len(found) > _MOST_RUNS:
        intro.append(f"{counted(len(found) - _MOST_RUNS, 'run')} more; JSON has them all.")
    return [clean(text) for text in intro]


def _latencies(row: ClientRow) -> tuple[tuple[str, Latency], ...]:
    return (("TTFT", row.ttft), ("TPOT", row.tpot), ("ITL", row.itl), ("E2E", row.e2e))


def _rate(value: float | None) -> str:
    return MISSING if value is None else f"{value:,.1f}"

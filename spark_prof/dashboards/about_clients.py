"""Sections about load generators: what their clients saw, and whether the engine's steps agree."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from spark_prof.analyzers.clients.client_rows import ClientRow, Comparison
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

_MOST_RUNS = 50
_FEW_RUNS = 4
_MOST_SENTENCES = 12
_LONGEST_NAME = 44
_LONGEST_LABEL = 24
_LONGEST_PROSE = 1000

_QUANTITIES: Mapping[str, str] = MappingProxyType(
    {"output_token": "TPOT", "chunk": "ITL", "first_token": "TTFT"}
)
_BESIDE = (
    "Beside TPOT stands the engine's time per output token, beside ITL a step that decodes, beside "
    "TTFT the steps that read a prompt: what TTFT has beyond them is queueing, tokenizing and HTTP."
)


def agreement(report: Report) -> Section:
    """Puts what the clients saw beside what the engine's steps took."""
    shown = report.clients[:_MOST_RUNS]
    rows = tuple(line for row in shown for line in _lines(row))
    columns = (
        Column("Run"),
        Column("Of"),
        Column("Client", "number"),
        Column("Engine", "number"),
        Column("Client off by", "number"),
        Column("Elsewhere", "number", optional=True),
        Column("Verdict"),
    )
    intro = [*_said(shown), _BESIDE] if any(row.comparisons for row in shown) else _said(shown)
    return Section("clients", "Does the client see the same?", columns, rows, tuple(intro))


def runs(found: Sequence[ClientRow]) -> Section:
    """Lists what the clients saw, run by run."""
    rows = tuple(
        (
            clean(row.tool),
            shorten(clean(row.model), _LONGEST_NAME),
            shorten(clean(row.label), _LONGEST_LABEL),
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
        Column("Requests", "number", optional=True),
        Column("Failed", "number", optional=True),
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
    """The sentences of each of a few runs; of many, those that are not about one of them."""
    if len(found) <= _FEW_RUNS:
        said = [f"{name(row)}: {' '.join(row.sentences)}" for row in found]
    else:
        own = (row.sentences[1:] if row.comparisons else row.sentences for row in found)
        said = list(dict.fromkeys(text for sentences in own for text in sentences))
    return [shorten(clean(text), _LONGEST_PROSE) for text in said[:_MOST_SENTENCES]]


def _lines(row: ClientRow) -> list[tuple[str, ...]]:
    """The rows of a run in the table, one for each quantity that was compared."""
    if not row.comparisons:
        return [(name(row), *[MISSING] * 5, "not compared")]
    return [
        (name(row) if first else "", *_compared(comparison), clean(row.verdict) if first else "")
        for first, comparison in zip(
            (True, *[False] * len(row.comparisons)), row.comparisons, strict=False
        )
    ]


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
    derived: dict[str, set[str]] = {}
    for row in found:
        for title, latency in _latencies(row):
            if latency.derived:
                derived.setdefault(latency.derived, set()).add(title)
    intro += [f"Derived, {how}: {', '.join(sorted(titles))}." for how, titles in derived.items()]
    if len(found) > _MOST_RUNS:
        intro.append(f"{counted(len(found) - _MOST_RUNS, 'run')} more; JSON has them all.")
    return [clean(text) for text in intro]


def _latencies(row: ClientRow) -> tuple[tuple[str, Latency], ...]:
    return (("TTFT", row.ttft), ("TPOT", row.tpot), ("ITL", row.itl), ("E2E", row.e2e))


def _rate(value: float | None) -> str:
    return MISSING if value is None else f"{value:,.1f}"

"""Draws results of load generators beside each other: one answer, and every latency below it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from spark_prof.analyzers.comparing.load_tests import ComparedLatency, LoadComparison
from spark_prof.dashboards import cells, section
from spark_prof.dashboards.compare_gate import by_share, by_us, span, verdict
from spark_prof.dashboards.render import Layout, draw
from spark_prof.dashboards.section import Document, Section, listed, table
from spark_prof.dashboards.units import MISSING, clean, microseconds, rate

_NAMES = {
    "tpot": ("TPOT", "a token after the first"),
    "itl": ("ITL", "a chunk of the stream"),
    "ttft": ("TTFT", "the first token"),
    "e2e": ("E2E", "a request"),
}
_FIELDS = {
    "concurrency": "requests at a time",
    "request_rate": "requests a second",
    "input_tokens": "prompt tokens of a request",
    "output_tokens": "generated tokens of a request",
}


def render_loads(comparison: LoadComparison, layout: Layout) -> str:
    """Draws the comparison in a format."""
    return draw(lambda: document(comparison), lambda: _record(comparison), layout)


def document(comparison: LoadComparison) -> Document:
    """The document that text, Markdown and HTML draw."""
    return section.document(answer(comparison), (), _sections(comparison))


def answer(comparison: LoadComparison) -> str:
    """Which side is faster for its clients, or why that is not told."""
    a, b = comparison.names
    if comparison.other:
        ours, theirs = (_load_value(getattr(load, comparison.other)) for load in comparison.loads)
        return clean(
            f"{a} and {b} are not comparable: their loads differ ({_FIELDS[comparison.other]}: "
            f"{ours} and {theirs})"
        )
    latency = comparison.headline
    assert latency is not None
    short, description = _NAMES[latency.quantity]
    change = latency.change
    figures = (
        f"{description} takes {microseconds(change.a)} on {a}, {microseconds(change.b)} on {b}"
    )
    figures += f" ({short}, means)"
    if not math.isfinite(change.low):
        return clean(
            f"nothing tells whether {a} and {b} differ: {figures}; give several results a side"
        )
    if not change.sure:
        return clean(f"no difference between {a} and {b} is shown: {figures}")
    word = "slower" if change.us > 0 else "faster"
    return clean(f"{b} is {by_share(change).lstrip('+-')} {word} than {a}: {figures}")


def _sections(comparison: LoadComparison) -> Iterator[Section]:
    a, b = comparison.names
    comparable = not comparison.other

    def has_interval(row: ComparedLatency) -> bool:
        return comparable and math.isfinite(row.change.low)

    columns = (
        cells.Text("Latency", lambda row: _NAMES[row.quantity][0]),
        cells.Formatted(clean(a), lambda row: microseconds(row.change.a)),
        cells.Formatted(clean(b), lambda row: microseconds(row.change.b)),
        cells.Formatted(
            "Change", lambda row: by_us(row.change.us) if has_interval(row) else MISSING
        ),
        cells.Formatted("", lambda row: by_share(row.change) if has_interval(row) else MISSING),
        cells.Text(
            "95 %", lambda row: span(row.change) if has_interval(row) else MISSING, optional=True
        ),
        cells.Text(
            f"{clean(b)} is", lambda row: verdict(row.change) if has_interval(row) else MISSING
        ),
    )
    yield table("load_latencies", "What clients saw", comparison.latencies, columns)
    throughput = [f"{rate(value)} on {name}" for name, value in
                  zip(comparison.names, comparison.throughput, strict=True) if value]  # fmt: skip
    if len(throughput) == 2:
        yield listed("load_throughput", "Output tokens/s", [", ".join(throughput)])
    yield listed("load_notes", "Caveats", _notes(comparison))


def _notes(comparison: LoadComparison) -> Iterator[str]:
    a, b = comparison.names
    if min(map(len, comparison.sources)) == 1:
        yield (
            "One result on a side: engine starts are taken to differ by up to 2 %, and nothing "
            "tells how much a client's runs do; give several a side, as A1,A2,A3 B1,B2,B3."
        )
    if comparison.models[0] != comparison.models[1]:
        yield f"The servers called their models {comparison.models[0]} and {comparison.models[1]}."
    for name, count in zip((a, b), comparison.failed, strict=True):
        if count:
            yield f"{count:,} requests of {name} failed: those that did not are compared."


def _load_value(value: float | None) -> str:
    return "as fast as they go" if value is None else f"{value:,.6g}"


def _record(comparison: LoadComparison) -> dict[str, Any]:
    names = ("concurrency", "request_rate", "input_tokens", "output_tokens")
    return {
        "schema": 1,
        "kind": "spark-prof compare of load tests",
        "answer": answer(comparison),
        "sides": [
            {
                "name": name,
                "sources": sources,
                "model": model,
                "load": {field: getattr(load, field) for field in names},
                "output_tokens_per_s": throughput,
                "failed": failed,
            }
            for name, sources, model, load, throughput, failed in zip(
                comparison.names,
                comparison.sources,
                comparison.models,
                comparison.loads,
                comparison.throughput,
                comparison.failed,
                strict=True,
            )
        ],
        "other_load": comparison.other or None,
        "latencies": comparison.latencies,
    }

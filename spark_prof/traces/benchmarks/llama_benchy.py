"""Results of llama-benchy: its JSON report, and its Markdown table as people paste it.

It measures prompt processing (pp) and generation (tg) in tokens per second and gives neither TPOT
nor ITL. A request's generation speed is its tokens after the first over the time from the first to
the last, so that its inverse is the TPOT of that request: src/llama_benchy/results.py and
schemas/benchmark_report_schema.json (0.1 to 0.3).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path

import msgspec

from spark_prof.traces.benchmarks.document import Count, Figure, decode, figure, scaled, whole
from spark_prof.traces.benchmarks.result import BenchmarkRun, Latency, latency_of

TOOL = "llama-benchy"
FIRST_TOKEN = "TTFT is llama-benchy's e2e_ttft: its ttfr ends with the first response, not token."
_FROM_VALUES = "1000 / (tokens per second) of each request"
_FROM_MEAN = "1000 / (mean tokens per second)"

_TEST = re.compile(
    r"(?<![\w/.-])(?P<context>ctx_)?(?P<kind>pp|tg)(?P<tokens>\d*)"
    r"(?: ?@ ?d(?P<depth>\d+))?(?: \(c(?P<concurrency>\d+)\))?(?=[\s|])"
)
_NUMBER = r"(\d{1,18}(?:\.\d{1,18})?)"
_VALUE = re.compile(rf"(?<!\d){_NUMBER} ± {_NUMBER}")


class _Metric(msgspec.Struct):
    mean: Figure = None
    std: Figure = None
    values: list[Figure] = []


class _Point(msgspec.Struct):
    concurrency: Count
    context_size: Count = None
    prompt_size: Count = None
    response_size: Count = None
    is_context_prefill_phase: bool = False
    tg_throughput: _Metric | None = None
    tg_req_throughput: _Metric | None = None
    e2e_ttft: _Metric | None = None


class _Report(msgspec.Struct):
    benchmarks: list[_Point]
    version: str = ""
    model: str = ""


def read_llama_benchy(path: Path) -> list[BenchmarkRun]:
    """One run for each point of a llama-benchy report in JSON."""
    report = decode(path, _Report)
    return [_point(report, point) for point in report.benchmarks]


def read_llama_benchy_tables(text: str) -> list[BenchmarkRun]:
    """One run for each pair of a pp and a tg row in a text, which may hold anything else.

    Pasting loses the empty cells of a table. A pp row's last value is its e2e_ttft, a tg row's
    first one its speed, whatever stood between them.
    """
    rows = [row for line in text.splitlines() if (row := _row(line))]
    paired = [
        (first, second) if second.kind == "tg" and second.of == first.of else (first, None)
        for first, second in pairwise([*rows, _NO_ROW])
        if first.kind == "pp"
    ]
    taken = {id(second) for _, second in paired if second}
    alone = [(None, row) for row in rows if row.kind == "tg" and id(row) not in taken]
    return [_pair(prompt, generated) for prompt, generated in [*paired, *alone]]


class _Row(msgspec.Struct, frozen=True):
    """One row of a table; `of` is equal for rows of the same point."""

    model: str
    kind: str
    tokens: str
    of: tuple[str, str, str, str]
    concurrency: int
    values: list[tuple[float, float]]


_NO_ROW = _Row("", "", "", ("", "", "", ""), 0, [])


def _point(report: _Report, point: _Point) -> BenchmarkRun:
    concurrency = whole(point.concurrency) or 1
    total = point.tg_throughput or _Metric()
    each = point.tg_req_throughput or (total if concurrency == 1 else _Metric())
    ttft = point.e2e_ttft or _Metric()
    context = f" @ d{point.context_size}" if point.context_size else ""
    sizes = f"pp{point.prompt_size}, tg{point.response_size}"
    if point.is_context_prefill_phase:
        sizes = "context"
    return BenchmarkRun(
        tool=TOOL,
        model=report.model,
        label=f"{sizes}{context}",
        concurrency=concurrency,
        output_throughput=figure(total.mean),
        ttft=_ttft(ttft),
        tpot=_tpot(each.values, each.mean),
        notes=(FIRST_TOKEN,),
    )


def _ttft(metric: _Metric) -> Latency:
    values = [us for value in metric.values if (us := scaled(value, 1e3)) is not None]
    if values:
        return latency_of(values, "")
    return Latency(mean=scaled(metric.mean, 1e3), std=scaled(metric.std, 1e3))


def _tpot(speeds: Iterable[Figure], mean: Figure) -> Latency:
    inverse = [1e6 / speed for value in speeds if (speed := figure(value))]
    if inverse:
        return latency_of(inverse, _FROM_VALUES)
    speed = figure(mean)
    return Latency(mean=1e6 / speed, derived=_FROM_MEAN) if speed else Latency()


def _row(line: str) -> _Row | None:
    test = _TEST.search(line)
    values = [(float(m), float(s)) for m, s in _VALUE.findall(line[test.end() :])] if test else []
    if not test or not values:
        return None
    model = line[: test.start()].strip(" |\t")
    of = (model, test["context"] or "", test["depth"] or "", test["concurrency"] or "")
    concurrency = whole(float(test["concurrency"] or 1)) or 1
    return _Row(model, test["kind"], test["tokens"], of, concurrency, values)


def _pair(prompt: _Row | None, generated: _Row | None) -> BenchmarkRun:
    row = prompt or generated or _NO_ROW
    sizes = [f"{r.kind}{r.tokens}" for r in (prompt, generated) if r]
    depth = f" @ d{row.of[2]}" if row.of[2] else ""
    # Of several requests at a time the first speed is that of all, the second that of one.
    speeds = [mean for mean, _ in generated.values] if generated else []
    each = speeds[min(row.concurrency, 2) - 1 :]
    first = prompt.values[-1] if prompt and len(prompt.values) > 1 else (None, None)
    return BenchmarkRun(
        tool=TOOL,
        model=row.model,
        label=f"{row.of[1]}{', '.join(sizes)}{depth}",
        concurrency=row.concurrency,
        output_throughput=figure(speeds[0]) if speeds else None,
        ttft=Latency(mean=scaled(first[0], 1e3), std=scaled(first[1], 1e3)),
        tpot=_tpot([], each[0] if each else None),
        notes=(FIRST_TOKEN,),
    )

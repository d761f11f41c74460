"""Results of guidellm: benchmarks.json.

Fields from guidellm/benchmark/schemas/generative/{benchmark,metrics}.py and
schemas/request_stats.py (0.4 to 0.8). Its names differ from vLLM's: its inter_token_latency is a
request's time per token after the first, which vLLM calls TPOT; its time_per_output_token includes
the first token and is not read. Times are seconds since the epoch.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from spark_prof.traces.benchmarks.document import (
    Count,
    Figure,
    decode,
    epoch_ns,
    figure,
    scaled,
    whole,
)
from spark_prof.traces.benchmarks.result import (
    BenchmarkRun,
    Latency,
    Request,
    given_latency,
    tokens_per_chunk,
)

_NAMES = (
    "TPOT is guidellm's inter_token_latency, which leaves out the first token of a request; its "
    "time_per_output_token does not."
)


class _Percentiles(msgspec.Struct):
    p90: Figure = None
    p99: Figure = None


class _Distribution(msgspec.Struct):
    mean: Figure = None
    median: Figure = None
    std_dev: Figure = None
    count: Count = None
    total_sum: Figure = None
    percentiles: _Percentiles = msgspec.field(default_factory=_Percentiles)


class _ByStatus(msgspec.Struct):
    successful: _Distribution | None = None


class _Totals(msgspec.Struct):
    successful: Count = None
    incomplete: Count = None
    errored: Count = None


class _Metrics(msgspec.Struct):
    request_totals: _Totals = msgspec.field(default_factory=_Totals)
    requests_per_second: _ByStatus | None = None
    request_concurrency: _ByStatus | None = None
    request_latency: _ByStatus | None = None
    prompt_token_count: _ByStatus | None = None
    output_token_count: _ByStatus | None = None
    time_to_first_token_ms: _ByStatus | None = None
    inter_token_latency_ms: _ByStatus | None = None
    output_tokens_per_second: _ByStatus | None = None
    tokens_per_second: _ByStatus | None = None


class _Timings(msgspec.Struct):
    token_iterations: Count = None


class _Info(msgspec.Struct):
    timings: _Timings = msgspec.field(default_factory=_Timings)


class _Request(msgspec.Struct):
    request_start_time: Figure = None
    request_latency: Figure = None
    prompt_tokens: Figure = None
    output_tokens: Figure = None
    time_to_first_token_ms: Figure = None
    info: _Info = msgspec.field(default_factory=_Info)


class _Requests(msgspec.Struct):
    successful: list[_Request] | None = None


class _Benchmark(msgspec.Struct):
    metrics: _Metrics
    start_time: Figure = None
    duration: Figure = None
    config: dict[str, Any] = {}
    requests: _Requests = msgspec.field(default_factory=_Requests)


class _Report(msgspec.Struct):
    benchmarks: list[_Benchmark]
    args: dict[str, Any] = {}


def read_guidellm(path: Path) -> list[BenchmarkRun]:
    """One run for each benchmark of a guidellm report."""
    report = decode(path, _Report)
    model = report.args.get("model")
    return [_run(found, model if isinstance(model, str) else "") for found in report.benchmarks]


def _run(found: _Benchmark, model: str) -> BenchmarkRun:
    metrics, totals = found.metrics, found.metrics.request_totals
    start_ns = epoch_ns(found.start_time)
    requests = tuple(_request(request) for request in found.requests.successful or ())
    strategy = found.config.get("strategy")
    strategy = strategy if isinstance(strategy, dict) else {}
    kind, streams, rate = (strategy.get(name) for name in ("type_", "streams", "rate"))
    return BenchmarkRun(
        tool="guidellm",
        model=model,
        label=kind if isinstance(kind, str) else "",
        concurrency=whole(streams) if isinstance(streams, int) else None,
        mean_concurrency=figure(_of(metrics.request_concurrency).mean),
        request_rate=figure(rate) if isinstance(rate, float | int) else None,
        start_ns=start_ns,
        clock="none" if start_ns is None else "epoch",
        duration_s=figure(found.duration),
        completed=whole(totals.successful),
        failed=whole(totals.errored),
        input_tokens=whole(_of(metrics.prompt_token_count).total_sum),
        output_tokens=whole(_of(metrics.output_token_count).total_sum),
        request_throughput=figure(_of(metrics.requests_per_second).mean),
        output_throughput=figure(_of(metrics.output_tokens_per_second).mean),
        total_throughput=figure(_of(metrics.tokens_per_second).mean),
        ttft=_latency(metrics.time_to_first_token_ms, 1e3),
        tpot=_latency(metrics.inter_token_latency_ms, 1e3),
        e2e=_latency(metrics.request_latency, 1e6),
        tokens_per_chunk=tokens_per_chunk(requests),
        requests=requests,
        notes=(_NAMES,),
    )


def _of(metric: _ByStatus | None) -> _Distribution:
    return (metric.successful if metric else None) or _Distribution()


def _latency(metric: _ByStatus | None, factor: float) -> Latency:
    found = _of(metric)
    if not found.count:
        return Latency()
    values = (found.mean, found.median, found.percentiles.p90, found.percentiles.p99, found.std_dev)
    return given_latency(scaled(value, factor) for value in values)


def _request(found: _Request) -> Request:
    return Request(
        start_ns=epoch_ns(found.request_start_time),
        ttft_us=scaled(found.time_to_first_token_ms, 1e3),
        e2e_us=scaled(found.request_latency, 1e6),
        input_tokens=whole(found.prompt_tokens),
        output_tokens=whole(found.output_tokens),
        chunks=whole(found.info.timings.token_iterations),
    )

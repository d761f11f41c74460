"""Results of aiperf and of genai-perf, its predecessor, which share their summary's layout.

aiperf: profile_export_aiperf.json and profile_export.jsonl, from docs/reference/json-export-schema
and docs/tutorials/working-with-profile-exports (0.8 to 0.13). genai-perf:
profile_export_genai_perf.json, from export_data/json_exporter.py. In both inter_token_latency is a
request's time per token after the first, which vLLM calls TPOT; inter_chunk_latency is what vLLM
calls ITL. Records carry ns since the epoch.
"""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec

from spark_prof.traces.benchmarks.document import (
    Figure,
    decode,
    decode_lines,
    figure,
    scaled,
    whole,
)
from spark_prof.traces.benchmarks.result import (
    BenchmarkRun,
    Latency,
    Request,
    gaps_of,
    given_latency,
    latency_of,
    tokens_per_chunk,
)

_NAMES = "TPOT is this tool's inter_token_latency, ITL its inter_chunk_latency."
_DERIVED = "from the single requests"
_TO_US = {"ns": 1e-3, "us": 1.0, "µs": 1.0, "ms": 1e3, "s": 1e6, "sec": 1e6}
_LATEST_NS = 1 << 62


class _Metric(msgspec.Struct):
    """One metric of the summary; the unit tells what its figures are."""

    unit: str = ""
    avg: Figure = None
    p50: Figure = None
    p90: Figure = None
    p99: Figure = None
    std: Figure = None
    sum: Figure = None


class _Summary(msgspec.Struct):
    aiperf_version: str | None = None
    start_time: str | None = None
    input_config: dict[str, Any] = {}
    request_count: _Metric = msgspec.field(default_factory=_Metric)
    error_request_count: _Metric | None = None
    benchmark_duration: _Metric = msgspec.field(default_factory=_Metric)
    request_throughput: _Metric = msgspec.field(default_factory=_Metric)
    output_token_throughput: _Metric = msgspec.field(default_factory=_Metric)
    total_output_tokens: _Metric = msgspec.field(default_factory=_Metric)
    time_to_first_token: _Metric = msgspec.field(default_factory=_Metric)
    inter_token_latency: _Metric = msgspec.field(default_factory=_Metric)
    inter_chunk_latency: _Metric = msgspec.field(default_factory=_Metric)
    request_latency: _Metric = msgspec.field(default_factory=_Metric)


class _Value(msgspec.Struct):
    value: float | list[Figure] | None = None
    unit: str = ""


class _Metrics(msgspec.Struct):
    time_to_first_token: _Value = msgspec.field(default_factory=_Value)
    request_latency: _Value = msgspec.field(default_factory=_Value)
    inter_chunk_latency: _Value = msgspec.field(default_factory=_Value)
    input_sequence_length: _Value = msgspec.field(default_factory=_Value)
    output_sequence_length: _Value = msgspec.field(default_factory=_Value)


class _Metadata(msgspec.Struct):
    request_start_ns: int
    request_end_ns: int | None = None
    benchmark_phase: str = "profiling"


class _Record(msgspec.Struct):
    metadata: _Metadata
    metrics: _Metrics | None = None
    error: dict[str, Any] | None = None


def read_aiperf_summary(path: Path) -> list[BenchmarkRun]:
    """The run of an aiperf or genai-perf summary."""
    found = decode(path, _Summary)
    start_ns = _utc(found.start_time)
    return [
        BenchmarkRun(
            tool="aiperf" if found.aiperf_version else "genai-perf",
            model=_model(found.input_config),
            concurrency=_concurrency(found.input_config),
            start_ns=start_ns,
            clock="none" if start_ns is None else "epoch",
            duration_s=scaled(_us(found.benchmark_duration, found.benchmark_duration.avg), 1e-6),
            completed=whole(found.request_count.avg),
            failed=whole(found.error_request_count.avg) if found.error_request_count else None,
            output_tokens=whole(found.total_output_tokens.avg),
            request_throughput=figure(found.request_throughput.avg),
            output_throughput=figure(found.output_token_throughput.avg),
            ttft=_latency(found.time_to_first_token),
            tpot=_latency(found.inter_token_latency),
            itl=_latency(found.inter_chunk_latency),
            e2e=_latency(found.request_latency),
            notes=(_NAMES,),
        )
    ]


def read_aiperf_records(path: Path) -> list[BenchmarkRun]:
    """The run that aiperf's records make up; requests of the warm-up are left out."""
    records = [r for r in decode_lines(path, _Record) if r.metadata.benchmark_phase != "warmup"]
    requests = tuple(_request(record) for record in records)
    done = tuple(r for r in requests if not r.failed)
    starts = [r.start_ns for r in requests if r.start_ns is not None]
    ends = [end for r in records if (end := _ns(r.metadata.request_end_ns)) is not None]
    seconds = (max(ends) - min(starts)) / 1e9 if starts and ends else 0.0
    tokens = sum(r.output_tokens or 0 for r in done)
    return [
        BenchmarkRun(
            tool="aiperf",
            start_ns=min(starts, default=None),
            clock="epoch" if starts else "none",
            duration_s=seconds if seconds > 0 else None,
            completed=len(done),
            failed=len(requests) - len(done),
            input_tokens=sum(r.input_tokens or 0 for r in done),
            output_tokens=tokens,
            request_throughput=len(done) / seconds if seconds > 0 else None,
            output_throughput=tokens / seconds if seconds > 0 else None,
            ttft=latency_of([r.ttft_us for r in done if r.ttft_us is not None], _DERIVED),
            tpot=latency_of([t for r in done if (t := r.tpot_us) is not None], _DERIVED),
            itl=latency_of(gaps_of(done), _DERIVED),
            e2e=latency_of([r.e2e_us for r in done if r.e2e_us is not None], _DERIVED),
            tokens_per_chunk=tokens_per_chunk(done),
            requests=requests,
            notes=(_NAMES,),
        )
    ]


def _latency(metric: _Metric) -> Latency:
    values = (metric.avg, metric.p50, metric.p90, metric.p99, metric.std)
    return given_latency(_us(metric, value) for value in values)


def _us(metric: _Metric | _Value, value: Figure) -> float | None:
    factor = _TO_US.get(metric.unit)
    return scaled(value, factor) if factor else None


def _request(record: _Record) -> Request:
    metrics = record.metrics or _Metrics()
    gaps = metrics.inter_chunk_latency
    known = gaps.value if isinstance(gaps.value, list) else None
    gaps_us = tuple(us for gap in known or () if (us := _us(gaps, gap)) is not None)
    return Request(
        start_ns=_ns(record.metadata.request_start_ns),
        ttft_us=_single(metrics.time_to_first_token),
        e2e_us=_single(metrics.request_latency),
        input_tokens=_tokens(metrics.input_sequence_length),
        output_tokens=_tokens(metrics.output_sequence_length),
        chunks=None if known is None else len(gaps_us) + 1,
        gaps_us=gaps_us,
        failed=record.error is not None,
    )


def _single(found: _Value) -> float | None:
    return None if isinstance(found.value, list) else _us(found, found.value)


def _tokens(found: _Value) -> int | None:
    return None if isinstance(found.value, list) else whole(found.value)


def _ns(value: int | None) -> int | None:
    return value if value is not None and 0 < value < _LATEST_NS else None


def _utc(text: str | None) -> int | None:
    """A moment as ns since the epoch; None where it has no time zone."""
    try:
        moment = datetime.fromisoformat(text or "")
        if moment.tzinfo is None:
            return None
        return _ns(int(moment.timestamp()) * 1_000_000_000 + moment.microsecond * 1000)
    except (ValueError, OverflowError):
        return None


def _concurrency(config: dict[str, Any]) -> int | None:
    """The concurrency of either tool's configuration; its place moved with the versions."""
    places = (("loadgen",), ("phases", "profiling"), ("perf_analyzer", "stimulus"), ())
    return next((n for place in places if (n := _count(config, *place, "concurrency"))), None)


def _count(config: Any, *names: str) -> int | None:
    for name in names:
        config = config.get(name) if isinstance(config, dict) else None
    return whole(config) if isinstance(config, int) and not isinstance(config, bool) else None


def _model(config: dict[str, Any]) -> str:
    endpoint = config.get("endpoint")
    places = (
        endpoint.get("model_names") if isinstance(endpoint, dict) else None,
        config.get("model_names"),
        config.get("model"),
    )
    for found in places:
        name = found[0] if isinstance(found, list) and found else found
        if isinstance(name, str):
            return name
    return ""

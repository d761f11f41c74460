"""Results of `vllm bench serve` and of SGLang's bench_serving, which grew out of the same script.

Keys and definitions from vllm/benchmarks/serve.py and lib/endpoint_request_func.py (0.24 to 0.33)
and sglang/bench_serving.py. Both take time.perf_counter(), on Linux the monotonic clock, which
counts from the host's boot.
"""

from __future__ import annotations

from calendar import timegm
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from time import strptime
from typing import TypeVar

import msgspec

from spark_prof.traces.benchmarks.document import (
    Count,
    Figure,
    decode_lines,
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

NATIVE_GAPS = (
    "SGLang's own endpoint shares the time of a chunk out among its tokens: its ITL is per token."
)
T = TypeVar("T")

_OPENAI = ("oai", "openai", "vllm", "lmdeploy")


class _Serving(msgspec.Struct):
    """The keys of both tools that are read; single requests only with --save-detailed."""

    date: str = ""
    backend: str = ""
    label: str | None = None
    model_id: str | None = None
    request_rate: float | str | None = None
    max_concurrency: Count = None
    concurrency: Figure = None
    duration: Figure = None
    completed: Count = None
    failed: Count = None
    total_input_tokens: Count = None
    total_output_tokens: Count = None
    request_throughput: Figure = None
    output_throughput: Figure = None
    total_token_throughput: Figure = None
    total_throughput: Figure = None
    accept_length: Figure = None
    spec_decode_acceptance_length: Figure = None
    mean_ttft_ms: Figure = None
    median_ttft_ms: Figure = None
    std_ttft_ms: Figure = None
    p90_ttft_ms: Figure = None
    p99_ttft_ms: Figure = None
    mean_tpot_ms: Figure = None
    median_tpot_ms: Figure = None
    std_tpot_ms: Figure = None
    p90_tpot_ms: Figure = None
    p99_tpot_ms: Figure = None
    mean_itl_ms: Figure = None
    median_itl_ms: Figure = None
    std_itl_ms: Figure = None
    p90_itl_ms: Figure = None
    p99_itl_ms: Figure = None
    mean_e2el_ms: Figure = None
    median_e2el_ms: Figure = None
    std_e2el_ms: Figure = None
    p90_e2el_ms: Figure = None
    p99_e2el_ms: Figure = None
    mean_e2e_latency_ms: Figure = None
    median_e2e_latency_ms: Figure = None
    std_e2e_latency_ms: Figure = None
    p90_e2e_latency_ms: Figure = None
    p99_e2e_latency_ms: Figure = None
    input_lens: list[Count] = []
    output_lens: list[Count] = []
    ttfts: list[Figure] = []
    itls: list[list[Figure]] = []
    latencies: list[Figure] = []
    start_times: list[Figure] = []
    errors: list[str | None] = []


def read_vllm(path: Path) -> list[BenchmarkRun]:
    """The runs of `vllm bench serve --save-result`, several where they were appended."""
    return [_run(f, "vllm bench serve", "e2el") for f in decode_lines(path, _Serving)]


def read_sglang(path: Path) -> list[BenchmarkRun]:
    """The runs of SGLang's bench_serving, one a line."""
    return [_run(f, "sglang bench_serving", "e2e_latency") for f in decode_lines(path, _Serving)]


def _run(found: _Serving, tool: str, whole_request: str) -> BenchmarkRun:
    per_token = tool.startswith("sglang") and not any(n in found.backend for n in _OPENAI)
    requests = _requests(found, per_token)
    starts = [r.start_ns for r in requests if r.start_ns is not None]
    rate = found.request_rate
    return BenchmarkRun(
        tool=tool,
        model=found.model_id or "",
        label=found.label or "",
        concurrency=whole(found.max_concurrency),
        mean_concurrency=figure(found.concurrency),
        request_rate=figure(rate) if isinstance(rate, float | int) else None,
        start_ns=min(starts, default=None),
        clock="monotonic" if starts else "none",
        local_end_ns=_local(found.date),
        duration_s=figure(found.duration),
        completed=whole(found.completed),
        failed=whole(found.failed),
        input_tokens=whole(found.total_input_tokens),
        output_tokens=whole(found.total_output_tokens),
        request_throughput=figure(found.request_throughput),
        output_throughput=figure(found.output_throughput),
        total_throughput=figure(found.total_token_throughput or found.total_throughput),
        ttft=_latency(found, "ttft"),
        tpot=_latency(found, "tpot"),
        itl=_latency(found, "itl"),
        e2e=_latency(found, whole_request),
        tokens_per_chunk=tokens_per_chunk(requests),
        itl_per_token=per_token,
        acceptance_length=figure(found.spec_decode_acceptance_length or found.accept_length),
        requests=requests,
        notes=(NATIVE_GAPS,) if per_token else (),
    )


def _latency(found: _Serving, name: str) -> Latency:
    # A run without a single request has zeros.
    if not found.completed:
        return Latency()
    names = ("mean", "median", "p90", "p99", "std")
    return given_latency(scaled(getattr(found, f"{n}_{name}_ms"), 1e3) for n in names)


def _requests(found: _Serving, per_token: bool) -> tuple[Request, ...]:
    count = max(len(found.ttfts), len(found.itls), len(found.start_times), len(found.errors))
    return tuple(_request(found, index, per_token) for index in range(count))


def _request(found: _Serving, index: int, per_token: bool) -> Request:
    start_ns = epoch_ns(_at(found.start_times, index))
    input_tokens = whole(_at(found.input_lens, index))
    first = scaled(_at(found.ttfts, index), 1e6)
    if _at(found.errors, index) or not first:
        return Request(start_ns, input_tokens=input_tokens, failed=True)
    gaps = _at(found.itls, index)
    known = tuple(us for gap in gaps or () if (us := scaled(gap, 1e6)) is not None)
    latency = scaled(_at(found.latencies, index), 1e6)
    if latency is None and gaps is not None:
        # vLLM before 0.30 does not write the latency, which is the sum of its parts.
        latency = first + sum(known)
    return Request(
        start_ns=start_ns,
        ttft_us=first,
        e2e_us=latency,
        input_tokens=input_tokens,
        output_tokens=whole(_at(found.output_lens, index)),
        chunks=None if gaps is None or per_token else len(known) + 1,
        gaps_us=known,
    )


def _at(column: Sequence[T], index: int) -> T | None:
    return column[index] if index < len(column) else None


def _local(date: str) -> int | None:
    """`date` is the local time at which the result was written, as 20261121-075800."""
    with suppress(ValueError, OverflowError):
        return epoch_ns(timegm(strptime(date, "%Y%m%d-%H%M%S")))
    return None

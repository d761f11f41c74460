"""What load generators write as JSON, each read with its own names and units.

A reader makes a run of each document of a file, or takes all of them; it raises ValueError where a
figure has another type.
"""

from __future__ import annotations

from calendar import timegm
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from time import strptime
from typing import Any

from spark_prof.traces.benchmarks.document import (
    Document,
    Number,
    epoch_ns,
    figure,
    scaled,
    whole,
)
from spark_prof.traces.benchmarks.load_test import (
    BenchmarkRun,
    Latency,
    Request,
    gaps_of,
    latency_of,
    tokens_per_chunk,
)

# vllm bench serve and SGLang's bench_serving grew out of the same script: vllm/benchmarks/serve.py
# and lib/endpoint_request_func.py (0.24 to 0.33), sglang/bench_serving.py. Both take
# time.perf_counter(), on Linux the monotonic clock, which counts from the host's boot.

NATIVE_GAPS = (
    "SGLang's own endpoint shares the time of a chunk out among its tokens: its ITL is per token."
)
_OPENAI = ("oai", "openai", "vllm", "lmdeploy")
_SERVING = {
    "model": "model_id", "label": "label",
    "concurrency": "max_concurrency", "mean_concurrency": "concurrency",
    "duration_s": "duration", "completed": "completed", "failed": "failed",
    "input_tokens": "total_input_tokens", "output_tokens": "total_output_tokens",
    "request_throughput": "request_throughput", "output_throughput": "output_throughput",
}  # fmt: skip
_STATISTICS = ("mean", "median", "p90", "p99", "std")


def serving(found: Document, tool: str, whole_request: str) -> BenchmarkRun:
    """A run of `vllm bench serve --save-result` or of SGLang's bench_serving."""
    backend, rate = found.text("backend"), found.at("request_rate")
    per_token = tool.startswith("sglang") and not any(name in backend for name in _OPENAI)
    requests = _serving_requests(found, per_token)
    starts = [r.start_ns for r in requests if r.start_ns is not None]
    latencies = {"ttft": "ttft", "tpot": "tpot", "itl": "itl", "e2e": whole_request}
    # A run without a single request has zeros.
    measured = bool(found.count("completed"))
    return found.run(
        _SERVING,
        tool=tool,
        request_rate=None if isinstance(rate, str) else figure(found.number("request_rate")),
        start_ns=min(starts, default=None),
        clock="monotonic" if starts else "none",
        local_end_ns=_local(found.text("date")),
        total_throughput=figure(
            found.number("total_token_throughput") or found.number("total_throughput")
        ),
        **{
            name: found.latency(f"{{}}_{key}_ms", _STATISTICS, 1e3) if measured else Latency()
            for name, key in latencies.items()
        },
        tokens_per_chunk=tokens_per_chunk(requests),
        itl_per_token=per_token,
        acceptance_length=figure(
            found.number("spec_decode_acceptance_length") or found.number("accept_length")
        ),
        requests=requests,
        notes=(NATIVE_GAPS,) if per_token else (),
    )


def _serving_requests(found: Document, per_token: bool) -> tuple[Request, ...]:
    starts, inputs, outputs, firsts, latencies = (
        found.numbers(name)
        for name in ("start_times", "input_lens", "output_lens", "ttfts", "latencies")
    )
    errors = found.items("errors")
    gaps = [Document({"": gap}).numbers("") for gap in found.items("itls")]
    requests = []
    for index in range(max(len(firsts), len(gaps), len(starts), len(errors))):
        start_ns, tokens = epoch_ns(_at(starts, index)), whole(_at(inputs, index))
        first = scaled(_at(firsts, index), 1e6)
        if _at(errors, index) or not first:
            requests.append(Request(start_ns, input_tokens=tokens, failed=True))
            continue
        known = _in_us(_at(gaps, index) or (), 1e6)
        latency = scaled(_at(latencies, index), 1e6)
        if latency is None and index < len(gaps):
            # vLLM before 0.30 does not write the latency, which is the sum of its parts.
            latency = first + sum(known)
        requests.append(
            Request(
                start_ns=start_ns,
                ttft_us=first,
                e2e_us=latency,
                input_tokens=tokens,
                output_tokens=whole(_at(outputs, index)),
                chunks=None if index >= len(gaps) or per_token else len(known) + 1,
                gaps_us=known,
            )
        )
    return tuple(requests)


def _at(column: Sequence[Any], index: int) -> Any:
    return column[index] if index < len(column) else None


def _in_us(values: Iterable[Number], factor: float) -> tuple[float, ...]:
    return tuple(us for value in values if (us := scaled(value, factor)) is not None)


def _local(date: str) -> int | None:
    """`date` is the local time at which the result was written, as 20261121-075800."""
    with suppress(ValueError, OverflowError):
        return epoch_ns(timegm(strptime(date, "%Y%m%d-%H%M%S")))
    return None


# vllm bench latency and vllm bench throughput do not stream: they know how long a whole batch
# takes, not when its tokens came. Keys from vllm/benchmarks/latency.py and throughput.py (0.24 to
# 0.33).

LATENCY_TOOL, THROUGHPUT_TOOL = "vllm bench latency", "vllm bench throughput"
WHOLE_BATCH = "The latency is that of a whole batch, from its prompts to its last token."
_THROUGHPUT = {
    "model": "model_id", "duration_s": "elapsed_time", "completed": "num_requests",
    "request_throughput": "requests_per_second", "total_throughput": "tokens_per_second",
}  # fmt: skip


def latency(found: Document) -> BenchmarkRun:
    """The run of `vllm bench latency --output-json`."""
    e2e = latency_of(_in_us(found.numbers("latencies"), 1e6), "")
    return found.run({"model": "model_id"}, tool=LATENCY_TOOL, e2e=e2e, notes=(WHOLE_BATCH,))


def throughput(found: Document) -> BenchmarkRun:
    """The run of `vllm bench throughput --output-json`."""
    return found.run(_THROUGHPUT, tool=THROUGHPUT_TOOL)


# guidellm: benchmarks.json, fields from benchmark/schemas/generative/{benchmark,metrics}.py and
# schemas/request_stats.py (0.4 to 0.8). Times are seconds since the epoch.

_GUIDELLM_NAMES = (
    "TPOT is guidellm's inter_token_latency, which leaves out the first token of a request; its "
    "time_per_output_token does not."
)
_GUIDELLM = {
    "mean_concurrency": "metrics.request_concurrency.successful.mean",
    "duration_s": "duration",
    "completed": "metrics.request_totals.successful",
    "failed": "metrics.request_totals.errored",
    "input_tokens": "metrics.prompt_token_count.successful.total_sum",
    "output_tokens": "metrics.output_token_count.successful.total_sum",
    "request_throughput": "metrics.requests_per_second.successful.mean",
    "output_throughput": "metrics.output_tokens_per_second.successful.mean",
    "total_throughput": "metrics.tokens_per_second.successful.mean",
}  # fmt: skip
_GUIDELLM_LATENCIES = {
    "ttft": ("metrics.time_to_first_token_ms.successful", 1e3),
    "tpot": ("metrics.inter_token_latency_ms.successful", 1e3),
    "e2e": ("metrics.request_latency.successful", 1e6),
}
_GUIDELLM_STATISTICS = ("mean", "median", "percentiles.p90", "percentiles.p99", "std_dev")


def read_guidellm(found: Sequence[Document]) -> list[BenchmarkRun]:
    """One run for each benchmark of a guidellm report."""
    return [
        replace(_guidellm(each), model=_text(report.at("args.model")))
        for report in found
        for each in report.documents("benchmarks")
    ]


def _guidellm(found: Document) -> BenchmarkRun:
    start_ns = epoch_ns(found.number("start_time"))
    requests = tuple(
        Request(
            start_ns=epoch_ns(each.number("request_start_time")),
            ttft_us=scaled(each.number("time_to_first_token_ms"), 1e3),
            e2e_us=scaled(each.number("request_latency"), 1e6),
            input_tokens=each.count("prompt_tokens"),
            output_tokens=each.count("output_tokens"),
            chunks=each.count("info.timings.token_iterations"),
        )
        for each in found.documents("requests.successful")
    )
    kind, streams, rate = (
        found.at(f"config.strategy.{name}") for name in ("type_", "streams", "rate")
    )
    return found.run(
        _GUIDELLM,
        tool="guidellm",
        label=_text(kind),
        concurrency=whole(streams) if isinstance(streams, int) else None,
        request_rate=figure(rate) if isinstance(rate, float | int) else None,
        start_ns=start_ns,
        clock="none" if start_ns is None else "epoch",
        **{
            name: found.latency(f"{path}.{{}}", _GUIDELLM_STATISTICS, factor)
            if found.count(f"{path}.count")
            else Latency()
            for name, (path, factor) in _GUIDELLM_LATENCIES.items()
        },
        tokens_per_chunk=tokens_per_chunk(requests),
        requests=requests,
        notes=(_GUIDELLM_NAMES,),
    )


# llama-benchy measures prompt processing (pp) and generation (tg) in tokens per second and gives
# neither TPOT nor ITL. A request's generation speed is its tokens after the first over the time
# from the first to the last, so that its inverse is the TPOT of that request:
# src/llama_benchy/results.py and schemas/benchmark_report_schema.json (0.1 to 0.3).

BENCHY = "llama-benchy"
FIRST_TOKEN = "TTFT is llama-benchy's e2e_ttft: its ttfr ends with the first response, not token."
_FROM_VALUES = "1000 / (tokens per second) of each request"
_FROM_MEAN = "1000 / (mean tokens per second)"


def read_llama_benchy(found: Sequence[Document]) -> list[BenchmarkRun]:
    """One run for each point of a llama-benchy report in JSON."""
    return [
        replace(_point(point), model=report.text("model"))
        for report in found
        for point in report.documents("benchmarks")
    ]


def _point(point: Document) -> BenchmarkRun:
    concurrency = point.count("concurrency") or 1
    each = "tg_req_throughput"
    if concurrency == 1 and not point.at(each):
        each = "tg_throughput"
    size = point.count("context_size")
    sizes = f"pp{point.count('prompt_size')}, tg{point.count('response_size')}"
    if point.at("is_context_prefill_phase"):
        sizes = "context"
    firsts = _in_us(point.numbers("e2e_ttft.values"), 1e3)
    return BenchmarkRun(
        tool=BENCHY,
        label=sizes + (f" @ d{size}" if size else ""),
        concurrency=concurrency,
        output_throughput=figure(point.number("tg_throughput.mean")),
        ttft=latency_of(firsts, "")
        if firsts
        else Latency(
            mean=scaled(point.number("e2e_ttft.mean"), 1e3),
            std=scaled(point.number("e2e_ttft.std"), 1e3),
        ),
        tpot=inverse_speed(point.numbers(f"{each}.values"), point.number(f"{each}.mean")),
        notes=(FIRST_TOKEN,),
    )


def inverse_speed(speeds: Iterable[Number], mean: Number) -> Latency:
    """A TPOT from tokens per second: of single requests, or where they are not known the mean."""
    inverse = [1e6 / speed for value in speeds if (speed := figure(value))]
    if inverse:
        return latency_of(inverse, _FROM_VALUES)
    speed = figure(mean)
    return Latency(mean=1e6 / speed, derived=_FROM_MEAN) if speed else Latency()


# aiperf and genai-perf, its predecessor, share their summary's layout. aiperf:
# profile_export_aiperf.json and profile_export.jsonl, from docs/reference/json-export-schema and
# docs/tutorials/working-with-profile-exports (0.8 to 0.13). genai-perf:
# profile_export_genai_perf.json, from export_data/json_exporter.py. In both inter_token_latency is
# a request's time per token after the first, which vLLM calls TPOT; inter_chunk_latency is what
# vLLM calls ITL. Records carry ns since the epoch.

_AIPERF_NAMES = "TPOT is this tool's inter_token_latency, ITL its inter_chunk_latency."
_DERIVED = "from the single requests"
_TO_US = {"ns": 1e-3, "us": 1.0, "µs": 1.0, "ms": 1e3, "s": 1e6, "sec": 1e6}
_LATEST_NS = 1 << 62
_AIPERF = {
    "completed": "request_count.avg", "failed": "error_request_count.avg",
    "output_tokens": "total_output_tokens.avg",
    "request_throughput": "request_throughput.avg",
    "output_throughput": "output_token_throughput.avg",
}  # fmt: skip
_AIPERF_LATENCIES = {
    "ttft": "time_to_first_token", "tpot": "inter_token_latency",
    "itl": "inter_chunk_latency", "e2e": "request_latency",
}  # fmt: skip
_AIPERF_STATISTICS = ("avg", "p50", "p90", "p99", "std")


def aiperf_summary(found: Document) -> BenchmarkRun:
    """The run of an aiperf or genai-perf summary."""
    start_ns = _utc(found.text("start_time"))
    latencies = {
        name: found.latency(f"{path}.{{}}", _AIPERF_STATISTICS, factor)
        for name, path in _AIPERF_LATENCIES.items()
        if (factor := _TO_US.get(found.text(f"{path}.unit")))
    }
    duration = _unit(found, "benchmark_duration", found.number("benchmark_duration.avg"))
    return found.run(
        _AIPERF,
        tool="aiperf" if found.text("aiperf_version") else "genai-perf",
        model=_aiperf_model(found),
        concurrency=_aiperf_concurrency(found),
        start_ns=start_ns,
        clock="none" if start_ns is None else "epoch",
        duration_s=scaled(duration, 1e-6),
        **latencies,
        notes=(_AIPERF_NAMES,),
    )


def read_aiperf_records(found: Sequence[Document]) -> list[BenchmarkRun]:
    """The run that aiperf's records make up; requests of the warm-up are left out."""
    records = [r for r in found if r.text("metadata.benchmark_phase") != "warmup"]
    requests = tuple(_record(record) for record in records)
    done = tuple(r for r in requests if not r.failed)
    starts = [r.start_ns for r in requests if r.start_ns is not None]
    ends = [end for r in records if (end := _ns(r.number("metadata.request_end_ns"))) is not None]
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
            notes=(_AIPERF_NAMES,),
        )
    ]


def _record(record: Document) -> Request:
    """One request; of metrics with a value for each chunk only the gaps between them count."""
    gaps = record.at("metrics.inter_chunk_latency.value")
    known = record.numbers("metrics.inter_chunk_latency.value") if isinstance(gaps, list) else None
    in_us = (_unit(record, "metrics.inter_chunk_latency", gap) for gap in known or ())
    gaps_us = tuple(us for us in in_us if us is not None)
    first, latency, inputs, outputs = (
        None
        if isinstance(record.at(f"metrics.{name}.value"), list)
        else record.number(f"metrics.{name}.value")
        for name in (
            "time_to_first_token", "request_latency", "input_sequence_length",
            "output_sequence_length",
        )
    )  # fmt: skip
    return Request(
        start_ns=_ns(record.number("metadata.request_start_ns")),
        ttft_us=_unit(record, "metrics.time_to_first_token", first),
        e2e_us=_unit(record, "metrics.request_latency", latency),
        input_tokens=whole(inputs),
        output_tokens=whole(outputs),
        chunks=None if known is None else len(gaps_us) + 1,
        gaps_us=gaps_us,
        failed=record.at("error") is not None,
    )


def _unit(found: Document, metric: str, value: Number) -> float | None:
    """A value of a metric in us, by the metric's unit."""
    factor = _TO_US.get(found.text(f"{metric}.unit"))
    return scaled(value, factor) if factor else None


def _ns(value: Number) -> int | None:
    return int(value) if value is not None and 0 < value < _LATEST_NS else None


def _utc(text: str) -> int | None:
    """A moment as ns since the epoch; None where it has no time zone."""
    try:
        moment = datetime.fromisoformat(text)
        if moment.tzinfo is None:
            return None
        return _ns(int(moment.timestamp()) * 1_000_000_000 + moment.microsecond * 1000)
    except (ValueError, OverflowError):
        return None


def _aiperf_concurrency(found: Document) -> int | None:
    """The concurrency of either tool's configuration; its place moved with the versions."""
    places = ("loadgen.", "phases.profiling.", "perf_analyzer.stimulus.", "")
    for place in places:
        value = _loosely(found, f"input_config.{place}concurrency")
        if type(value) is int and (count := whole(value)):
            return count
    return None


def _aiperf_model(found: Document) -> str:
    for place in ("endpoint.model_names", "model_names", "model"):
        names = _loosely(found, f"input_config.{place}")
        name = names[0] if isinstance(names, list) and names else names
        if isinstance(name, str):
            return name
    return ""


def _loosely(found: Document, path: str) -> Any:
    """What is there in a configuration, which versions lay out differently."""
    with suppress(ValueError):
        return found.at(path)
    return None


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""

"""What load generators write as JSON: a table of where each figure stands, and in which unit.

A figure that is not there, of another type, negative, endless or NaN was not measured, and is None.
"""

from __future__ import annotations

from calendar import timegm
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from itertools import zip_longest
from math import nan
from time import strptime
from typing import Any

from spark_prof.traces.benchmarks.load_test import (
    LATENCIES,
    BenchmarkRun,
    ClientRequest,
    Latency,
    latency_of,
    tokens_per_chunk,
)

_LARGEST = 1e15  # no duration in us, rate or count is larger: 1e15 us are 31 years

_MOST_NS = 1 << 62
_US = {"ns": 1e-3, "us": 1.0, "µs": 1.0, "ms": 1e3, "s": 1e6, "sec": 1e6}
_TEXTS = ("model", "label")
_COUNTS = ("concurrency", "completed", "failed", "input_tokens", "output_tokens", "chunks")


def figure(value: Any, factor: float = 1.0) -> float | None:
    """A duration, rate or share, in another unit."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    scaled = value * factor if 0 <= value <= _LARGEST else nan
    return float(scaled) if 0 <= scaled <= _LARGEST else None


def whole(value: Any) -> int | None:
    """A number of things."""
    number = figure(value)
    return None if number is None else round(number)


def column(document: Any, path: str, factor: float = 1.0) -> list[float]:
    """The figures of a list, without those that were not measured."""
    values = at(document, path)
    listed = values if isinstance(values, list) else []
    return [quantity for value in listed if (quantity := figure(value, factor)) is not None]


def at(document: Any, path: str) -> Any:
    """Whatever stands at a path such as ``metrics.request_totals.errored``."""
    for name in path.split("."):
        document = document.get(name) if isinstance(document, dict) else None
    return document


def fields_of(document: Any, places: Mapping[str, str], statistics: str = "") -> dict[str, Any]:
    """The fields of a `BenchmarkRun` or `Request` that are known.

    Args:
        places: the path of each field and, of a time, a blank and its unit; ``*`` is the unit that
            stands beside it as `unit`. Of several places, with | between them, the first that
            holds something counts. In that of a latency {} stands for the name of a statistic.
        statistics: the names of mean, median, p90, p99 and std.
    """
    fields = {}
    for name, several in places.items():
        for place in several.split("|"):
            path, _, unit = place.partition(" ")
            value = _field(document, name, path, unit, statistics)
            if value is not None:
                fields[name] = value
                break
    return fields


def _field(document: Any, field: str, path: str, unit: str, statistics: str) -> Any:
    if unit == "*":
        unit = str(at(document, f"{path.rpartition('.')[0]}.unit"))
    if field in LATENCIES:
        mean, median, p90, p99, std = (
            figure(at(document, path.format(name)), _US.get(unit, nan))
            for name in statistics.split()
        )
        # Zeros are of a run in which nothing was measured.
        return Latency(mean, median, p90, p99, std) if mean or median else None
    value = at(document, path)
    if field in _TEXTS:
        value = value[0] if isinstance(value, list) and value else value
        return value if isinstance(value, str) else None
    if field == "gaps_us":
        return (
            tuple(column(document, path, _US.get(unit, nan))) if isinstance(value, list) else None
        )
    if field == "start_ns":
        return moment_ns(value, unit)
    if field in _COUNTS:
        return whole(value)
    factor = _US.get(unit, nan) if unit else 1.0
    return figure(value, factor * 1e-6 if unit and field == "duration_s" else factor)


def moment_ns(value: Any, unit: str) -> int | None:
    """A moment on some clock, in s, ns or as a date with its time zone, in whole ns."""
    if isinstance(value, str):
        with suppress(ValueError, OverflowError):
            date = datetime.fromisoformat(value)
            seconds = int(date.timestamp()) if date.tzinfo is not None else 0
            return seconds * 1_000_000_000 + date.microsecond * 1000 if seconds > 0 else None
        return None
    if unit == "ns":
        return value if isinstance(value, int) and 0 < value < _MOST_NS else None
    stamp = figure(value)
    if stamp is None or stamp > _MOST_NS / 1e9:
        return None
    # Without losing the digits of a float of ns.
    return int(stamp) * 1_000_000_000 + round((stamp - int(stamp)) * 1e9)


@dataclass(frozen=True)
class JsonDialect:
    """One result format in JSON."""

    name: str
    tool: str
    signs: tuple[str, ...]  # regular expressions of keys that all stand near its begin
    example: str  # the shortest file that is recognised
    fields: Mapping[str, str] = field(default_factory=dict)  # as `fields_of` takes them
    statistics: str = "mean median p90 p99 std"
    runs_path: str = ""  # the list with an object for each run; empty where a document is a run
    # The fields that no place tells.
    other_fields: Callable[[Mapping[str, Any]], Mapping[str, Any]] = lambda _: {}
    clock: str = "none"  # what `start_ns` counts from, where it is known
    notes: tuple[str, ...] = ()
    one_run: bool = False  # whether all documents of a file are one run
    refusal: str = ""  # why it is not read

    def read(self, documents: Sequence[Mapping[str, Any]]) -> list[BenchmarkRun]:
        """The runs of a file."""
        run_objects = [{"documents": documents}] if self.one_run else documents
        if self.runs_path:  # what a document says of all its runs counts for each of them
            run_objects = [
                {**document, **run_object}
                for document in documents
                for run_object in at(document, self.runs_path) or ()
                if isinstance(run_object, dict)
            ]
        return [self.run(run_object) for run_object in run_objects]

    def run(self, document: Mapping[str, Any]) -> BenchmarkRun:
        """The run that an object describes."""
        fields = {
            "tool": self.tool,
            "notes": self.notes,
            **fields_of(document, self.fields, self.statistics),
            **self.other_fields(document),
        }
        fields["clock"] = "none" if fields.get("start_ns") is None else self.clock
        fields["tokens_per_chunk"] = tokens_per_chunk(fields.get("requests", ()))
        return BenchmarkRun(**fields)


# vllm bench serve and SGLang's bench_serving grew out of the same script: vllm/benchmarks/serve.py
# and lib/endpoint_request_func.py (0.24 to 0.33), sglang/bench_serving.py. Both take
# time.perf_counter(), on Linux the monotonic clock, which counts from the host's boot.

_NATIVE_GAPS = (
    "SGLang's own endpoint shares the time of a chunk out among its tokens: its ITL is per token."
)
_OPENAI = ("oai", "openai", "vllm", "lmdeploy")
_SERVING = {
    "model": "model_id", "label": "label", "request_rate": "request_rate",
    "concurrency": "max_concurrency", "mean_concurrency": "concurrency",
    "duration_s": "duration", "completed": "completed", "failed": "failed",
    "input_tokens": "total_input_tokens", "output_tokens": "total_output_tokens",
    "request_throughput": "request_throughput", "output_throughput": "output_throughput",
    "total_throughput": "total_token_throughput|total_throughput",
    "acceptance_length": "spec_decode_acceptance_length|accept_length",
    "ttft": "{}_ttft_ms ms", "tpot": "{}_tpot_ms ms", "itl": "{}_itl_ms ms",
    "e2e": "{}_e2el_ms ms|{}_e2e_latency_ms ms",
}  # fmt: skip
_SERVING_REQUEST = {
    "start_ns": "start_times s", "ttft_us": "ttfts s", "e2e_us": "latencies s",
    "input_tokens": "input_lens", "output_tokens": "output_lens", "gaps_us": "itls s",
}  # fmt: skip
_COLUMNS = (*(place.split()[0] for place in _SERVING_REQUEST.values()), "errors")


def _serving(document: Mapping[str, Any], sglang: bool) -> dict[str, Any]:
    backend = document.get("backend")
    native = sglang and isinstance(backend, str) and not any(name in backend for name in _OPENAI)
    requests = tuple(_serving_requests(document, native))
    fields: dict[str, Any] = {
        "start_ns": _first_start(requests),
        "itl_per_token": native,
        "requests": requests,
        "notes": (_NATIVE_GAPS,) if native else (),
    }
    with suppress(ValueError, OverflowError, TypeError):
        # When the result was written, by the local clock, as 20261121-075800.
        end_time = strptime(document.get("date"), "%Y%m%d-%H%M%S")  # type: ignore[arg-type]
        fields["local_end_ns"] = moment_ns(timegm(end_time), "s")
    return fields


def _first_start(requests: Iterable[ClientRequest]) -> int | None:
    return min((r.start_ns for r in requests if r.start_ns is not None), default=None)


def _serving_requests(document: Mapping[str, Any], native: bool) -> Iterable[ClientRequest]:
    columns = [document.get(name) for name in _COLUMNS]
    for values in zip_longest(*(column if isinstance(column, list) else () for column in columns)):
        row = dict(zip(_COLUMNS, values, strict=True))
        fields = fields_of(row, _SERVING_REQUEST)
        gaps = fields.get("gaps_us")
        if row["errors"] or not fields.get("ttft_us"):
            tokens = fields.get("input_tokens")
            yield ClientRequest(fields.get("start_ns"), input_tokens=tokens, failed=True)
            continue
        if gaps is not None:
            # vLLM before 0.30 does not write the latency, which is the sum of its parts.
            fields = {"e2e_us": fields["ttft_us"] + sum(gaps), **fields}
            fields["chunks"] = None if native else len(gaps) + 1
        yield ClientRequest(**fields)


SGLANG = JsonDialect(
    "sglang bench_serving", "sglang bench_serving",
    ("request_throughput", "mean_e2e_latency_ms|accept_length"),
    '{"request_throughput": 1.0, "mean_e2e_latency_ms": 1.0}',
    _SERVING, other_fields=partial(_serving, sglang=True), clock="monotonic",
)  # fmt: skip
VLLM = JsonDialect(
    "vllm bench serve", "vllm bench serve", ("request_throughput", "total_token_throughput"),
    '{"request_throughput": 1.0, "total_token_throughput": 1.0}',
    _SERVING, other_fields=partial(_serving, sglang=False), clock="monotonic",
)  # fmt: skip

# SGLang's bench_one_batch_server sends a batch of equal requests at once and writes one line a
# batch: BenchmarkResult of sglang/test. `output_throughput` is of the time behind `last_ttft`.

_ONE_BATCH_NOTE = (
    "Output tokens per second count from the batch's last first token on, which TTFT is; the "
    "request is the whole batch."
)


def _one_batch(document: Mapping[str, Any]) -> dict[str, Any]:
    batch, speed = whole(document.get("batch_size")), figure(document.get("output_throughput"))
    fields: dict[str, Any] = {
        "label": f"batch {batch}, {whole(document.get('input_len'))} tokens in, "
        f"{whole(document.get('output_len'))} out",
        "ttft": Latency(figure(document.get("last_ttft"), 1e6)),
        "e2e": Latency(figure(document.get("latency"), 1e6)),
    }
    if not batch:
        return fields
    for name, length in (("input_tokens", "input_len"), ("output_tokens", "output_len")):
        tokens = whole(document.get(length))
        fields[name] = None if tokens is None else batch * tokens
    if speed:
        fields["tpot"] = Latency(1e6 * batch / speed, derived="batch size / tokens per second")
    return fields


ONE_BATCH = JsonDialect(
    "sglang bench_one_batch_server", "sglang bench_one_batch_server",
    ("batch_size", "last_ttft", "output_throughput"),
    '{"batch_size": 1, "output_throughput": 1.0, "last_ttft": 1.0}',
    {
        "model": "model_path", "concurrency": "batch_size", "completed": "batch_size",
        "duration_s": "latency", "output_throughput": "output_throughput",
        "total_throughput": "overall_throughput", "acceptance_length": "acc_length",
    },
    other_fields=_one_batch, notes=(_ONE_BATCH_NOTE,),
)  # fmt: skip

# vllm bench latency and vllm bench throughput do not stream: they know how long a whole batch
# takes, not when its tokens came. Keys from vllm/benchmarks/latency.py and throughput.py (0.24 to
# 0.33).

LATENCY_TOOL, THROUGHPUT_TOOL = "vllm bench latency", "vllm bench throughput"
WHOLE_BATCH = "The latency is that of a whole batch, from its prompts to its last token."

# guidellm: benchmarks.json, fields from benchmark/schemas/generative/{benchmark,metrics}.py and
# schemas/request_stats.py (0.4 to 0.8). Times are seconds since the epoch.

_GUIDELLM = {
    "model": "args.model", "label": "config.strategy.type_",
    "concurrency": "config.strategy.streams", "request_rate": "config.strategy.rate",
    "start_ns": "start_time s", "duration_s": "duration",
    "mean_concurrency": "metrics.request_concurrency.successful.mean",
    "completed": "metrics.request_totals.successful",
    "failed": "metrics.request_totals.errored",
    "input_tokens": "metrics.prompt_token_count.successful.total_sum",
    "output_tokens": "metrics.output_token_count.successful.total_sum",
    "request_throughput": "metrics.requests_per_second.successful.mean",
    "output_throughput": "metrics.output_tokens_per_second.successful.mean",
    "total_throughput": "metrics.tokens_per_second.successful.mean",
    "ttft": "metrics.time_to_first_token_ms.successful.{} ms",
    "tpot": "metrics.inter_token_latency_ms.successful.{} ms",
    "e2e": "metrics.request_latency.successful.{} s",
}  # fmt: skip
_GUIDELLM_REQUEST = {
    "start_ns": "request_start_time s", "ttft_us": "time_to_first_token_ms ms",
    "e2e_us": "request_latency s", "input_tokens": "prompt_tokens",
    "output_tokens": "output_tokens", "chunks": "info.timings.token_iterations",
}  # fmt: skip


# llama-benchy measures prompt processing (pp) and generation (tg) in tokens per second and gives
# neither TPOT nor ITL. A request's generation speed is its tokens after the first over the time
# from the first to the last, so that its inverse is the TPOT of that request:
# src/llama_benchy/results.py and schemas/benchmark_report_schema.json (0.1 to 0.3).

BENCHY = "llama-benchy"
FIRST_TOKEN = "TTFT is llama-benchy's e2e_ttft: its ttfr ends with the first response, not token."
_FROM_VALUES = "1000 / (tokens per second) of each request"
_FROM_MEAN = "1000 / (mean tokens per second)"


def _benchy(point: Mapping[str, Any]) -> dict[str, Any]:
    concurrency = whole(point.get("concurrency")) or 1
    speed_key = "tg_req_throughput"
    if concurrency == 1 and not point.get(speed_key):
        speed_key = "tg_throughput"
    size = whole(point.get("context_size"))
    sizes = f"pp{whole(point.get('prompt_size'))}, tg{whole(point.get('response_size'))}"
    if point.get("is_context_prefill_phase"):
        sizes = "context"
    fields = {
        "label": sizes + (f" @ d{size}" if size else ""),
        "concurrency": concurrency,
        "tpot": inverse_speed(column(point, f"{speed_key}.values"), at(point, f"{speed_key}.mean")),
    }
    firsts = column(point, "e2e_ttft.values", 1e3)
    return fields | ({"ttft": latency_of(firsts)} if firsts else {})


def inverse_speed(speeds: Iterable[float], mean: object) -> Latency:
    """A TPOT from tokens per second: of single requests, or where they are not known the mean."""
    inverse = [1e6 / speed for speed in speeds if speed]
    if inverse:
        return latency_of(inverse, _FROM_VALUES)
    speed = figure(mean)
    return Latency(mean=1e6 / speed, derived=_FROM_MEAN) if speed else Latency()


# aiperf and genai-perf, its predecessor, share their summary's layout. aiperf:
# profile_export_aiperf.json and profile_export.jsonl, from docs/reference/json-export-schema and
# docs/tutorials/working-with-profile-exports (0.8 to 0.13). genai-perf:
# profile_export_genai_perf.json, from export_data/json_exporter.py. In both inter_token_latency is
# a request's time per token after the first, which vLLM calls TPOT; inter_chunk_latency is what
# vLLM calls ITL. Records carry ns since the epoch. The configuration's layout moved with versions.

_AIPERF_NAMES = "TPOT is this tool's inter_token_latency, ITL its inter_chunk_latency."
_DERIVED = "from the single requests"
_CONCURRENCY = ("loadgen.", "phases.profiling.", "perf_analyzer.stimulus.", "")
_MODELS = ("endpoint.model_names", "model_names", "model")
_AIPERF = {
    "model": "|".join(f"input_config.{place}" for place in _MODELS),
    "concurrency": "|".join(f"input_config.{place}concurrency" for place in _CONCURRENCY),
    "start_ns": "start_time", "duration_s": "benchmark_duration.avg *",
    "completed": "request_count.avg", "failed": "error_request_count.avg",
    "output_tokens": "total_output_tokens.avg",
    "request_throughput": "request_throughput.avg",
    "output_throughput": "output_token_throughput.avg",
    "ttft": "time_to_first_token.{} *", "tpot": "inter_token_latency.{} *",
    "itl": "inter_chunk_latency.{} *", "e2e": "request_latency.{} *",
}  # fmt: skip
_AIPERF_REQUEST = {
    "start_ns": "metadata.request_start_ns ns",
    "ttft_us": "metrics.time_to_first_token.value *",
    "e2e_us": "metrics.request_latency.value *",
    "input_tokens": "metrics.input_sequence_length.value",
    "output_tokens": "metrics.output_sequence_length.value",
    "gaps_us": "metrics.inter_chunk_latency.value *",
}


def _aiperf_records(document: Mapping[str, Any]) -> dict[str, Any]:
    """The run that aiperf's records make up; requests of the warm-up are left out."""
    records = [r for r in document["documents"] if at(r, "metadata.benchmark_phase") != "warmup"]
    requests = tuple(map(_record, records))
    successful = tuple(r for r in requests if not r.failed)
    start = _first_start(requests)
    ends = [moment_ns(at(record, "metadata.request_end_ns"), "ns") or 0 for record in records]
    seconds = (max(ends) - start) / 1e9 if start is not None else 0.0
    tokens = sum(r.output_tokens or 0 for r in successful)
    fields: dict[str, Any] = {
        "start_ns": start,
        "completed": len(successful),
        "failed": len(requests) - len(successful),
        "input_tokens": sum(r.input_tokens or 0 for r in successful),
        "output_tokens": tokens,
        "ttft": latency_of((r.ttft_us for r in successful), _DERIVED),
        "tpot": latency_of((r.tpot_us for r in successful), _DERIVED),
        "itl": latency_of((gap for r in successful for gap in r.gaps_us), _DERIVED),
        "e2e": latency_of((r.e2e_us for r in successful), _DERIVED),
        "requests": requests,
    }
    if seconds > 0:
        rates = {"request_throughput": len(successful), "output_throughput": tokens}
        fields |= {"duration_s": seconds} | {name: of / seconds for name, of in rates.items()}
    return fields


def _record(record: Mapping[str, Any]) -> ClientRequest:
    fields = fields_of(record, _AIPERF_REQUEST)
    if "gaps_us" in fields:
        fields["chunks"] = len(fields["gaps_us"]) + 1
    return ClientRequest(**fields, failed=record.get("error") is not None)


_SUMMARY = partial(
    JsonDialect, fields=_AIPERF, statistics="avg p50 p90 p99 std", clock="epoch",
    notes=(_AIPERF_NAMES,),
)  # fmt: skip

JSON_DIALECTS = (
    JsonDialect(
        "aiperf records", "aiperf", ("metadata", "request_start_ns", "metrics|error"),
        '{"metadata": {"request_start_ns": 1}, "metrics": {}}', other_fields=_aiperf_records,
        clock="epoch", notes=(_AIPERF_NAMES,), one_run=True,
    ),
    _SUMMARY(
        "aiperf summary", "aiperf", ("request_latency", "unit", "aiperf_version"),
        '{"aiperf_version": "0.13.0", "request_latency": {"unit": "ms"}}',
    ),
    _SUMMARY(
        "genai-perf summary", "genai-perf", ("request_latency", "unit", "avg"),
        '{"request_latency": {"unit": "ms", "avg": 1.0}}',
    ),
    JsonDialect(
        "perf_analyzer responses", "", ("experiments", "response_timestamps"),
        '{"experiments": [{"requests": [{"response_timestamps": []}]}]}',
        refusal="holds perf_analyzer's raw responses; give the ..._genai_perf.json beside it",
    ),
    JsonDialect(
        "guidellm", "guidellm",
        ("benchmarks", "request_totals|scheduler_metrics|guidellm_version"),
        '{"metadata": {"guidellm_version": "0.4"}, "benchmarks": []}',
        _GUIDELLM, "mean median percentiles.p90 percentiles.p99 std_dev", "benchmarks",
        lambda document: {"requests": tuple(
            ClientRequest(**fields_of(row, _GUIDELLM_REQUEST))
            for row in at(document, "requests.successful") or ()
        )},
        "epoch", (
            "TPOT is guidellm's inter_token_latency, which leaves out the first token of a "
            "request; its time_per_output_token does not.",
        ),
    ),
    JsonDialect(
        BENCHY, BENCHY, ("benchmarks", "latency_mode"),
        '{"latency_mode": "api", "benchmarks": []}',
        {"model": "model", "output_throughput": "tg_throughput.mean", "ttft": "e2e_ttft.{} ms"},
        runs_path="benchmarks", other_fields=_benchy, notes=(FIRST_TOKEN,),
    ),
    ONE_BATCH,
    SGLANG,
    VLLM,
    JsonDialect(
        LATENCY_TOOL, LATENCY_TOOL, ("avg_latency", "latencies"),
        '{"avg_latency": 1.0, "latencies": [1.0]}',
        {"model": "model_id"}, notes=(WHOLE_BATCH,),
        other_fields=lambda document: {"e2e": latency_of(column(document, "latencies", 1e6))},
    ),
    JsonDialect(
        THROUGHPUT_TOOL, THROUGHPUT_TOOL, ("elapsed_time", "num_requests", "tokens_per_second"),
        '{"elapsed_time": 1.0, "num_requests": 1, "tokens_per_second": 1.0}',
        {
            "model": "model_id", "duration_s": "elapsed_time", "completed": "num_requests",
            "request_throughput": "requests_per_second", "total_throughput": "tokens_per_second",
        },
    ),
)  # fmt: skip
"""The first whose signs are all there is the file's."""

"""Tells which load generator wrote a file, by its content, and reads it: a row for each dialect."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

from spark_prof.errors import CommandError
from spark_prof.redact import redacted_text, redacted_value
from spark_prof.traces.benchmarks import json_dialects, printed
from spark_prof.traces.benchmarks.document import Document, documents, read_bytes, read_head
from spark_prof.traces.benchmarks.load_test import BenchmarkResult, BenchmarkRun

_MOST_RUNS = 10_000
_TEXTS = ("tool", "model", "label", "notes")


@dataclass(frozen=True)
class JsonDialect:
    """One result format in JSON."""

    name: str
    signs: tuple[str, ...]  # regular expressions of keys that all stand near its begin
    read: Callable[[Sequence[Document]], list[BenchmarkRun]] | None
    example: str  # the shortest file that is recognised
    refusal: str = ""  # why it is not read, instead of a reader


@dataclass(frozen=True)
class TextDialect:
    """One printed format; a text can hold several, and anything else."""

    name: str
    sign: str  # a regular expression that finds it
    read: Callable[[str], list[BenchmarkRun]]
    example: str  # the shortest text that is recognised


def _each(
    read: Callable[..., BenchmarkRun], *more: str
) -> Callable[[Sequence[Document]], list[BenchmarkRun]]:
    return lambda found: [read(document, *more) for document in found]


JSON_DIALECTS = (
    JsonDialect("aiperf records", ("metadata", "request_start_ns", "metrics|error"),
                json_dialects.read_aiperf_records,
                '{"metadata": {"request_start_ns": 1}, "metrics": {}}'),
    JsonDialect("aiperf summary", ("request_latency", "unit", "aiperf_version"),
                _each(json_dialects.aiperf_summary),
                '{"aiperf_version": "0.13.0", "request_latency": {"unit": "ms"}}'),
    JsonDialect("genai-perf summary", ("request_latency", "unit", "avg"),
                _each(json_dialects.aiperf_summary),
                '{"request_latency": {"unit": "ms", "avg": 1.0}}'),
    JsonDialect("perf_analyzer responses", ("experiments", "response_timestamps"), None,
                '{"experiments": [{"requests": [{"response_timestamps": []}]}]}',
                "holds perf_analyzer's raw responses; give the ..._genai_perf.json beside it"),
    JsonDialect("guidellm", ("benchmarks", "request_totals|scheduler_metrics|guidellm_version"),
                json_dialects.read_guidellm,
                '{"metadata": {"guidellm_version": "0.4"}, "benchmarks": []}'),
    JsonDialect("llama-benchy", ("benchmarks", "latency_mode"), json_dialects.read_llama_benchy,
                '{"latency_mode": "api", "benchmarks": []}'),
    JsonDialect("sglang bench_serving",
                ("request_throughput", "mean_e2e_latency_ms|accept_length"),
                _each(json_dialects.serving, "sglang bench_serving", "e2e_latency"),
                '{"request_throughput": 1.0, "mean_e2e_latency_ms": 1.0}'),
    JsonDialect("vllm bench serve", ("request_throughput", "total_token_throughput"),
                _each(json_dialects.serving, "vllm bench serve", "e2el"),
                '{"request_throughput": 1.0, "total_token_throughput": 1.0}'),
    JsonDialect("vllm bench latency", ("avg_latency", "latencies"), _each(json_dialects.latency),
                '{"avg_latency": 1.0, "latencies": [1.0]}'),
    JsonDialect("vllm bench throughput", ("elapsed_time", "num_requests", "tokens_per_second"),
                _each(json_dialects.throughput),
                '{"elapsed_time": 1.0, "num_requests": 1, "tokens_per_second": 1.0}'),
)  # fmt: skip
"""The first whose signs are all there is the file's."""

TEXT_DIALECTS = (
    TextDialect("printed serving result", r"={5,} Serving Benchmark Result ={5,}",
                printed.read_printed, "===== Serving Benchmark Result ====="),
    TextDialect("printed offline result",
                r"Avg latency: [\d.]+ seconds|Throughput: [\d.]+ requests/s, [\d.]+ total tokens/s",
                printed.read_printed_offline, "Avg latency: 1.5 seconds"),
    TextDialect("llama-benchy table", r"\b(?:pp|tg)\d*(?: ?@ ?d\d+)?[^\n]*? ± ",
                printed.read_llama_benchy_tables, "| m | tg32 | 82.01 ± 0.51 |"),
    TextDialect("vLLM log",
                r"Avg prompt throughput: [\d.]+ tokens/s, Avg generation throughput:",
                printed.read_vllm_log,
                "Avg prompt throughput: 0.0 tokens/s, Avg generation throughput: 1"),
)  # fmt: skip
"""All of them are looked for in a text."""


def recognise(path: Path) -> str | None:
    """The name of a result file's format, several joined by commas; None for any other file."""
    head = read_head(path).lstrip()
    if head[:1] in ("{", "["):
        found = _json_dialect(head)
        return found.name if found else None
    return ", ".join(f.name for f in TEXT_DIALECTS if re.search(f.sign, head)) or None


def read_benchmark(path: Path) -> BenchmarkResult:
    """Reads a load generator's result.

    Raises:
        CommandError: the file is missing, damaged, too large, or nobody's result.
    """
    head = read_head(path).lstrip()
    if head[:1] in ("{", "["):
        found = _json_dialect(head)
        runs = _read_json(path, found) if found else []
    else:
        text = read_bytes(path).decode("utf-8", errors="replace")
        runs = list(chain.from_iterable(f.read(text) for f in TEXT_DIALECTS))
    if not runs:
        tools = "vllm bench, SGLang, llama-benchy, guidellm, aiperf or genai-perf"
        raise CommandError(f"{path} holds no result of {tools}, nor lines of vLLM's log")
    if len(runs) > _MOST_RUNS:
        raise CommandError(f"{path} holds more than {_MOST_RUNS} runs; give a part of it")
    shown = (
        replace(run, **redacted_value({name: getattr(run, name) for name in _TEXTS}))
        for run in runs
    )
    return BenchmarkResult(redacted_text(str(path)), tuple(shown), _lost(runs))


def _read_json(path: Path, dialect: JsonDialect) -> list[BenchmarkRun]:
    if dialect.read is None:
        raise CommandError(f"{path} {dialect.refusal}")
    try:
        return dialect.read(documents(read_bytes(path)))
    except (ValueError, RecursionError) as error:
        reason = " ".join(str(error).split())[:160]
        raise CommandError(f"{path} is damaged ({reason}); export it again") from error


def _json_dialect(head: str) -> JsonDialect | None:
    for known in JSON_DIALECTS:
        if all(re.search(rf'"(?:{sign})"\s*:', head) for sign in known.signs):
            return known
    return None


def _lost(runs: list[BenchmarkRun]) -> tuple[str, ...]:
    """What no run of a result tells."""
    lost = []
    if not any(run.tpot.known for run in runs):
        lost.append("The result has no time per output token.")
    if not any(run.requests for run in runs):
        lost.append("The result has no single requests: only its statistics can be compared.")
    return tuple(lost)

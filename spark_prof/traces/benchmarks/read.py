"""Tells which load generator wrote a file, by its content, and reads it."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

from spark_prof.errors import CommandError
from spark_prof.redact import redacted_text, redacted_value
from spark_prof.traces.benchmarks.aiperf import read_aiperf_records, read_aiperf_summary
from spark_prof.traces.benchmarks.document import read_head, read_text
from spark_prof.traces.benchmarks.guidellm import read_guidellm
from spark_prof.traces.benchmarks.llama_benchy import read_llama_benchy, read_llama_benchy_tables
from spark_prof.traces.benchmarks.offline import (
    read_latency,
    read_printed_offline,
    read_throughput,
)
from spark_prof.traces.benchmarks.result import BenchmarkResult, BenchmarkRun
from spark_prof.traces.benchmarks.serving import read_sglang, read_vllm
from spark_prof.traces.benchmarks.serving_text import read_printed
from spark_prof.traces.benchmarks.vllm_log import read_vllm_log

_MOST_RUNS = 10_000
_TEXTS = ("tool", "model", "label", "notes")


@dataclass(frozen=True)
class JsonFormat:
    """One result format in JSON.

    Attributes:
        signs: regular expressions of keys that all stand near its begin.
        example: the shortest file that is recognised.
    """

    name: str
    signs: tuple[str, ...]
    read: Callable[[Path], list[BenchmarkRun]]
    example: str


@dataclass(frozen=True)
class TextFormat:
    """One printed format; a text can hold several, and anything else.

    Attributes:
        sign: a regular expression that finds it.
        example: the shortest text that is recognised.
    """

    name: str
    sign: str
    read: Callable[[str], list[BenchmarkRun]]
    example: str


def _no_responses(path: Path) -> list[BenchmarkRun]:
    raise CommandError(
        f"{path} holds perf_analyzer's raw responses; give the ..._genai_perf.json beside it"
    )


JSON_FORMATS = (
    JsonFormat("aiperf records", ("metadata", "request_start_ns", "metrics|error"),
               read_aiperf_records,
               '{"metadata": {"request_start_ns": 1}, "metrics": {}}'),
    JsonFormat("aiperf summary", ("request_latency", "unit", "aiperf_version"),
               read_aiperf_summary,
               '{"aiperf_version": "0.13.0", "request_latency": {"unit": "ms"}}'),
    JsonFormat("genai-perf summary", ("request_latency", "unit", "avg"), read_aiperf_summary,
               '{"request_latency": {"unit": "ms", "avg": 1.0}}'),
    JsonFormat("perf_analyzer responses", ("experiments", "response_timestamps"), _no_responses,
               '{"experiments": [{"requests": [{"response_timestamps": []}]}]}'),
    JsonFormat("guidellm", ("benchmarks", "request_totals|scheduler_metrics|guidellm_version"),
               read_guidellm, '{"metadata": {"guidellm_version": "0.4"}, "benchmarks": []}'),
    JsonFormat("llama-benchy", ("benchmarks", "latency_mode"), read_llama_benchy,
               '{"latency_mode": "api", "benchmarks": []}'),
    JsonFormat("sglang bench_serving", ("request_throughput", "mean_e2e_latency_ms|accept_length"),
               read_sglang, '{"request_throughput": 1.0, "mean_e2e_latency_ms": 1.0}'),
    JsonFormat("vllm bench serve", ("request_throughput", "total_token_throughput"), read_vllm,
               '{"request_throughput": 1.0, "total_token_throughput": 1.0}'),
    JsonFormat("vllm bench latency", ("avg_latency", "latencies"), read_latency,
               '{"avg_latency": 1.0, "latencies": [1.0]}'),
    JsonFormat("vllm bench throughput", ("elapsed_time", "num_requests", "tokens_per_second"),
               read_throughput,
               '{"elapsed_time": 1.0, "num_requests": 1, "tokens_per_second": 1.0}'),
)  # fmt: skip
"""The first whose signs are all there is the file's."""

TEXT_FORMATS = (
    TextFormat("printed serving result", r"={5,} Serving Benchmark Result ={5,}", read_printed,
               "===== Serving Benchmark Result ====="),
    TextFormat("printed offline result",
               r"Avg latency: [\d.]+ seconds|Throughput: [\d.]+ requests/s, [\d.]+ total tokens/s",
               read_printed_offline, "Avg latency: 1.5 seconds"),
    TextFormat("llama-benchy table", r"\b(?:pp|tg)\d*(?: ?@ ?d\d+)?[^\n]*? ± ",
               read_llama_benchy_tables, "| m | tg32 | 82.01 ± 0.51 |"),
    TextFormat("vLLM log", r"Avg prompt throughput: [\d.]+ tokens/s, Avg generation throughput:",
               read_vllm_log, "Avg prompt throughput: 0.0 tokens/s, Avg generation throughput: 1"),
)  # fmt: skip
"""All of them are looked for in a text."""


def recognise(path: Path) -> str | None:
    """The name of a result file's format, several joined by commas; None for any other file."""
    head = read_head(path).lstrip()
    if head[:1] in ("{", "["):
        found = _json_format(head)
        return found.name if found else None
    return ", ".join(f.name for f in TEXT_FORMATS if re.search(f.sign, head)) or None


def read_benchmark(path: Path) -> BenchmarkResult:
    """Reads a load generator's result.

    Raises:
        CommandError: the file is missing, damaged, too large, or nobody's result.
    """
    head = read_head(path).lstrip()
    if head[:1] in ("{", "["):
        found = _json_format(head)
        runs = found.read(path) if found else []
    else:
        text = read_text(path)
        runs = list(chain.from_iterable(f.read(text) for f in TEXT_FORMATS))
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


def _json_format(head: str) -> JsonFormat | None:
    for known in JSON_FORMATS:
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

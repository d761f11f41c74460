"""What `vllm bench serve` and SGLang's bench_serving print, as people paste it.

The layout is a line of "=" signs around "Serving Benchmark Result", one figure a line, and a line
of "=" signs: vllm/benchmarks/serve.py, sglang/bench_serving.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from types import MappingProxyType

from spark_prof.traces.benchmarks.document import figure, scaled, whole
from spark_prof.traces.benchmarks.result import BenchmarkRun, Latency, given_latency
from spark_prof.traces.benchmarks.serving import NATIVE_GAPS

_BEGIN = re.compile(r"={5,} Serving Benchmark Result ={5,}")
_END = re.compile(r"={30,}\s*$")
_LINE = re.compile(r"([A-Z][\w /().%-]*?):\s+(\S+)\s*$")
_LATENCY = re.compile(r"(mean|median|p90|p99) (ttft|tpot|itl|e2el|e2e latency) \(ms\)")
_MOST_LINES = 200
"""A result without an end is not looked for further than this."""

_LABELS: Mapping[str, str] = MappingProxyType(
    {
        "successful requests": "completed",
        "failed requests": "failed",
        "maximum request concurrency": "concurrency",
        "max request concurrency": "concurrency",
        "request rate configured (rps)": "request_rate",
        "traffic request rate": "request_rate",
        "benchmark duration (s)": "duration_s",
        "total input tokens": "input_tokens",
        "total generated tokens": "output_tokens",
        "request throughput (req/s)": "request_throughput",
        "output token throughput (tok/s)": "output_throughput",
        "total token throughput (tok/s)": "total_throughput",
        "concurrency": "mean_concurrency",
        "acceptance length": "acceptance_length",
        "accept length": "acceptance_length",
    }
)
"""The field of a run that each printed label fills; versions differ in capitals only."""

_COUNTS = frozenset({"completed", "failed", "concurrency", "input_tokens", "output_tokens"})


def read_printed(text: str) -> list[BenchmarkRun]:
    """The results in a text, which may hold anything else."""
    return [_run(dict(section)) for section in _sections(text)]


def _sections(text: str) -> Iterator[list[tuple[str, str]]]:
    section: list[tuple[str, str]] | None = None
    left = 0
    for line in text.splitlines():
        if _BEGIN.search(line):
            if section:
                yield section
            section, left = [], _MOST_LINES
        elif section is not None:
            left -= 1
            if _END.search(line) or left == 0:
                if section:
                    yield section
                section = None
            elif found := _LINE.search(line):
                section.append((found[1].lower(), found[2]))
    if section:
        yield section


def _run(found: Mapping[str, str]) -> BenchmarkRun:
    sglang = "traffic request rate" in found
    values = {
        _LABELS[k]: number
        for k, v in found.items()
        if k in _LABELS and (number := _number(v)) is not None
    }
    statistics: dict[str, dict[str, float | None]] = {}
    for label, value in found.items():
        if match := _LATENCY.fullmatch(label):
            statistics.setdefault(match[2], {})[match[1]] = scaled(_number(value), 1e3)
    latencies = {
        name: given_latency(given.get(n) for n in ("mean", "median", "p90", "p99", "std"))
        for name, given in statistics.items()
    }
    counts = {name: whole(values.get(name)) for name in _COUNTS}
    return BenchmarkRun(
        tool="sglang bench_serving" if sglang else "vllm bench serve",
        concurrency=counts["concurrency"],
        mean_concurrency=values.get("mean_concurrency"),
        request_rate=values.get("request_rate"),
        duration_s=values.get("duration_s"),
        completed=counts["completed"],
        failed=counts["failed"],
        input_tokens=counts["input_tokens"],
        output_tokens=counts["output_tokens"],
        request_throughput=values.get("request_throughput"),
        output_throughput=values.get("output_throughput"),
        total_throughput=values.get("total_throughput"),
        ttft=latencies.get("ttft", Latency()),
        tpot=latencies.get("tpot", Latency()),
        itl=latencies.get("itl", Latency()),
        e2e=latencies.get("e2el", latencies.get("e2e latency", Latency())),
        acceptance_length=values.get("acceptance_length"),
        itl_per_token=found.get("backend") == "sglang",
        notes=(NATIVE_GAPS,) if found.get("backend") == "sglang" else (),
    )


def _number(text: str) -> float | None:
    try:
        return figure(float(text.replace(",", "")))
    except ValueError:
        return None

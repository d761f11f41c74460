"""Results of `vllm bench latency` and `vllm bench throughput`, JSON and printed.

Neither streams: they know how long a whole batch takes, not when its tokens came. Keys and lines
from vllm/benchmarks/latency.py and throughput.py (0.24 to 0.33).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import msgspec

from spark_prof.traces.benchmarks.document import Count, Figure, decode, figure, scaled, whole
from spark_prof.traces.benchmarks.result import BenchmarkRun, Latency, latency_of

_LATENCY = "vllm bench latency"
_THROUGHPUT = "vllm bench throughput"
_BATCH = "The latency is that of a whole batch, from its prompts to its last token."
_AVERAGE = re.compile(r"Avg latency: (\d+(?:\.\d+)?(?:e-?\d+)?) seconds")
_PERCENTILE = re.compile(r"\b(50|90|99)% percentile latency: (\d+(?:\.\d+)?(?:e-?\d+)?) seconds")
_RATES = re.compile(
    r"Throughput: (\d+\.\d+) requests/s, (\d+\.\d+) total tokens/s, (\d+\.\d+) output tokens/s"
)
_TOKENS = re.compile(r"Total num (prompt|output) tokens: +(\d{1,15})\b")


class _Latency(msgspec.Struct):
    latencies: list[Figure]
    avg_latency: Figure = None
    model_id: str | None = None


class _Throughput(msgspec.Struct):
    elapsed_time: Figure
    num_requests: Count
    model_id: str | None = None
    total_num_tokens: Count = None
    requests_per_second: Figure = None
    tokens_per_second: Figure = None


def read_latency(path: Path) -> list[BenchmarkRun]:
    """The run of `vllm bench latency --output-json`."""
    found = decode(path, _Latency)
    batches = [us for seconds in found.latencies if (us := scaled(seconds, 1e6)) is not None]
    e2e = latency_of(batches, "")
    return [BenchmarkRun(tool=_LATENCY, model=found.model_id or "", e2e=e2e, notes=(_BATCH,))]


def read_throughput(path: Path) -> list[BenchmarkRun]:
    """The run of `vllm bench throughput --output-json`."""
    found = decode(path, _Throughput)
    return [
        BenchmarkRun(
            tool=_THROUGHPUT,
            model=found.model_id or "",
            duration_s=figure(found.elapsed_time),
            completed=whole(found.num_requests),
            request_throughput=figure(found.requests_per_second),
            total_throughput=figure(found.tokens_per_second),
        )
    ]


def read_printed_offline(text: str) -> list[BenchmarkRun]:
    """The results of either command in a text, which may hold anything else."""
    runs = []
    for average, part in _parts(text, list(_AVERAGE.finditer(text))):
        given = {f"p{p}": scaled(float(v), 1e6) for p, v in _PERCENTILE.findall(part)}
        mean = scaled(float(average[1]), 1e6)
        e2e = Latency(mean, given.get("p50"), given.get("p90"), given.get("p99"))
        runs.append(BenchmarkRun(tool=_LATENCY, e2e=e2e, notes=(_BATCH,)))
    for rates, part in _parts(text, list(_RATES.finditer(text))):
        tokens = {kind: int(count) for kind, count in _TOKENS.findall(part)}
        runs.append(
            BenchmarkRun(
                tool=_THROUGHPUT,
                input_tokens=tokens.get("prompt"),
                output_tokens=tokens.get("output"),
                request_throughput=figure(float(rates[1])),
                total_throughput=figure(float(rates[2])),
                output_throughput=figure(float(rates[3])),
            )
        )
    return runs


def _parts(text: str, found: list[re.Match[str]]) -> Iterator[tuple[re.Match[str], str]]:
    """Each match with the text up to the next one."""
    for index, match in enumerate(found):
        end = found[index + 1].start() if index + 1 < len(found) else len(text)
        yield match, text[match.end() : end]

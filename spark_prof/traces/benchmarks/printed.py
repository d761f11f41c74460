"""What load generators print, and vLLM's own log, as people paste it.

A text may hold several results, and anything else between them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, median
from typing import NamedTuple

from spark_prof.traces.benchmarks.document import figure, scaled, whole
from spark_prof.traces.benchmarks.json_dialects import (
    BENCHY,
    FIRST_TOKEN,
    LATENCY_TOOL,
    NATIVE_GAPS,
    THROUGHPUT_TOOL,
    WHOLE_BATCH,
    inverse_speed,
)
from spark_prof.traces.benchmarks.load_test import COUNTS, BenchmarkRun, Latency, given_latency

# What vllm bench serve and SGLang's bench_serving print: a line of "=" signs around "Serving
# Benchmark Result", one figure a line, and a line of "=" signs: vllm/benchmarks/serve.py,
# sglang/bench_serving.py.

_BEGIN = re.compile(r"={5,} Serving Benchmark Result ={5,}")
_END = re.compile(r"={30,}\s*$")
_LINE = re.compile(r"([A-Z][\w /().%-]*?):\s+(\S+)\s*$")
_LATENCY = re.compile(r"(mean|median|p90|p99) (ttft|tpot|itl|e2el|e2e latency) \(ms\)")
_MOST_LINES = 200
"""A result without an end is not looked for further than this."""

_LABELS = {
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
"""The field of a run that each printed label fills; versions differ in capitals only."""


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
        _LABELS[k]: whole(number) if _LABELS[k] in COUNTS else number
        for k, v in found.items()
        if k in _LABELS and (number := _number(v)) is not None
    }
    statistics: dict[str, dict[str, float | None]] = {}
    for label, value in found.items():
        if match := _LATENCY.fullmatch(label):
            statistics.setdefault(match[2], {})[match[1]] = scaled(_number(value), 1e3)
    latencies = {
        name: given_latency(map(given.get, ("mean", "median", "p90", "p99", "std")))
        for name, given in statistics.items()
    }
    native = found.get("backend") == "sglang"
    return BenchmarkRun(
        tool="sglang bench_serving" if sglang else "vllm bench serve",
        **values,  # type: ignore[arg-type]
        ttft=latencies.get("ttft", Latency()),
        tpot=latencies.get("tpot", Latency()),
        itl=latencies.get("itl", Latency()),
        e2e=latencies.get("e2el", latencies.get("e2e latency", Latency())),
        itl_per_token=native,
        notes=(NATIVE_GAPS,) if native else (),
    )


def _number(text: str) -> float | None:
    try:
        return figure(float(text.replace(",", "")))
    except ValueError:
        return None


# What vllm bench latency and throughput print: vllm/benchmarks/latency.py and throughput.py.

_AVERAGE = re.compile(r"Avg latency: (\d+(?:\.\d+)?(?:e-?\d+)?) seconds")
_PERCENTILE = re.compile(r"\b(50|90|99)% percentile latency: (\d+(?:\.\d+)?(?:e-?\d+)?) seconds")
_RATES = re.compile(
    r"Throughput: (\d+\.\d+) requests/s, (\d+\.\d+) total tokens/s, (\d+\.\d+) output tokens/s"
)
_TOKENS = re.compile(r"Total num (prompt|output) tokens: +(\d{1,15})\b")


def read_printed_offline(text: str) -> list[BenchmarkRun]:
    """The results of either command in a text, which may hold anything else."""
    runs = []
    for average, part in _parts(text, list(_AVERAGE.finditer(text))):
        given = {f"p{p}": scaled(float(v), 1e6) for p, v in _PERCENTILE.findall(part)}
        mean = scaled(float(average[1]), 1e6)
        e2e = Latency(mean, given.get("p50"), given.get("p90"), given.get("p99"))
        runs.append(BenchmarkRun(tool=LATENCY_TOOL, e2e=e2e, notes=(WHOLE_BATCH,)))
    for rates, part in _parts(text, list(_RATES.finditer(text))):
        tokens = {kind: int(count) for kind, count in _TOKENS.findall(part)}
        runs.append(
            BenchmarkRun(
                tool=THROUGHPUT_TOOL,
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


# llama-benchy's table.

_TEST = re.compile(
    r"(?<![\w/.-])(?P<context>ctx_)?(?P<kind>pp|tg)(?P<tokens>\d*)"
    r"(?: ?@ ?d(?P<depth>\d+))?(?: \(c(?P<concurrency>\d+)\))?(?=[\s|])"
)
_NUMBER = r"(\d{1,18}(?:\.\d{1,18})?)"
_VALUE = re.compile(rf"(?<!\d){_NUMBER} ± {_NUMBER}")


@dataclass(frozen=True)
class _Row:
    """One row of a table; `of` is equal for rows of the same point."""

    model: str
    kind: str
    tokens: str
    of: tuple[str, str, str, str]
    concurrency: int
    values: list[tuple[float, float]]


_NO_ROW = _Row("", "", "", ("", "", "", ""), 0, [])


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
        tool=BENCHY,
        model=row.model,
        label=f"{row.of[1]}{', '.join(sizes)}{depth}",
        concurrency=row.concurrency,
        output_throughput=figure(speeds[0]) if speeds else None,
        ttft=Latency(mean=scaled(first[0], 1e3), std=scaled(first[1], 1e3)),
        tpot=inverse_speed([], each[0] if each else None),
        notes=(FIRST_TOKEN,),
    )


# The periodic lines in vLLM's log say what the engine did in the seconds before: `Engine 000: Avg
# prompt throughput: ... Avg generation throughput: ...` from v1/metrics/loggers.py,
# `SpecDecoding metrics: Mean acceptance length: ...` from v1/spec_decode/metrics.py (0.8 to 0.33).
# The numbers of running and waiting requests are those of the moment; the line has no year and no
# time zone.

_LOG_LINE = re.compile(
    r"(?:Engine (?P<engine>\d+): )?Avg prompt throughput: (?P<prompt>\d+(?:\.\d+)?) tokens/s, "
    r"Avg generation throughput: (?P<generated>\d+(?:\.\d+)?) tokens/s, "
    r"Running: (?P<running>\d+) reqs,.*?Waiting: (?P<waiting>\d+) reqs"
)
_ACCEPTED = re.compile(r"Mean acceptance length: (\d+(?:\.\d+)?)")
_LOG_NOTE = (
    "From vLLM's own log, averages over some seconds each: the engine's view, not a client's. "
    "Running is the count at the end of each."
)
_FROM_LINES = "running requests over tokens per second, of lines without prompt tokens"


class _Interval(NamedTuple):
    prompt: float
    generated: float
    running: int


def read_vllm_log(text: str) -> list[BenchmarkRun]:
    """One run for each engine that a text has lines of; idle lines are left out."""
    engines: dict[str, list[_Interval]] = {}
    accepted = []
    for line in text.splitlines():
        if found := _LOG_LINE.search(line):
            prompt, generated = float(found["prompt"]), float(found["generated"])
            if prompt or generated:
                interval = _Interval(prompt, generated, int(found["running"][:9]))
                engines.setdefault(found["engine"] or "", []).append(interval)
        elif found := _ACCEPTED.search(line):
            accepted.append(float(found[1]))
    length = figure(fmean(accepted)) if accepted else None
    return [_engine_run(engine, intervals, length) for engine, intervals in engines.items()]


def _engine_run(engine: str, intervals: list[_Interval], accepted: float | None) -> BenchmarkRun:
    steady = [i for i in intervals if not i.prompt and i.generated and i.running]
    each = [1e6 * i.running / i.generated for i in steady]
    lines = f"{len(intervals)} {'line' if len(intervals) == 1 else 'lines'} of the log"
    return BenchmarkRun(
        tool="vLLM's log",
        label=f"engine {engine[-9:]}, {lines}" if engine else lines,
        mean_concurrency=fmean(i.running for i in intervals) or None,
        output_throughput=figure(fmean(i.generated for i in intervals)),
        tpot=Latency(median=figure(median(each)), derived=_FROM_LINES) if each else Latency(),
        acceptance_length=accepted,
        notes=(_LOG_NOTE,),
    )

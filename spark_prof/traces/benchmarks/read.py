"""Tells which load generator wrote a file, by its content, and reads it within bounds.

What load generators print, and vLLM's own log, is read as people paste it: a text may hold several
results, and anything else between them.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from statistics import fmean, median
from typing import Any, NamedTuple

from spark_prof.errors import CommandError, os_errors
from spark_prof.redact import redacted_text, redacted_value
from spark_prof.traces.benchmarks.json_dialects import (
    BENCHY,
    FIRST_TOKEN,
    JSON_DIALECTS,
    LATENCY_TOOL,
    SGLANG,
    THROUGHPUT_TOOL,
    VLLM,
    WHOLE_BATCH,
    JsonDialect,
    figure,
    inverse_speed,
    whole,
)
from spark_prof.traces.benchmarks.load_test import BenchmarkResult, BenchmarkRun, Latency

# What vllm bench serve and SGLang's bench_serving print: a line of "=" signs around "Serving
# Benchmark Result", one figure a line, and a line of "=" signs: vllm/benchmarks/serve.py,
# sglang/bench_serving.py. Each figure stands in their JSON too.

_SERVING = r"={5,} Serving Benchmark Result ={5,}"
_END = re.compile(r"={30,}\s*$")
_LINE = re.compile(r"([A-Z][\w /().%-]*?):\s+(\S+)\s*$")
_LATENCY = re.compile(r"(mean|median|p90|p99) (ttft|tpot|itl|e2el|e2e latency) \(ms\)")
_MOST_LINES = 200  # a result without an end is not looked for further than this

_KEYS = {
    "backend": "backend", "concurrency": "concurrency",
    "successful requests": "completed", "failed requests": "failed",
    "maximum request concurrency": "max_concurrency", "max request concurrency": "max_concurrency",
    "request rate configured (rps)": "request_rate", "traffic request rate": "request_rate",
    "benchmark duration (s)": "duration", "total input tokens": "total_input_tokens",
    "total generated tokens": "total_output_tokens",
    "request throughput (req/s)": "request_throughput",
    "output token throughput (tok/s)": "output_throughput",
    "total token throughput (tok/s)": "total_token_throughput",
    "acceptance length": "accept_length", "accept length": "accept_length",
}  # fmt: skip
"""The key that each printed label has in JSON; versions differ in capitals only."""


def _serving(text: str) -> Iterator[BenchmarkRun]:
    for part in re.split(_SERVING, text)[1:]:
        labels = {}
        for line in part.splitlines()[1 : _MOST_LINES + 1]:
            if _END.search(line):
                break
            if match := _LINE.search(line):
                labels[match[1].lower()] = match[2]
        if labels:
            figures = {key: _number(v) for k, v in labels.items() if (key := _key(k))}
            yield (SGLANG if "traffic request rate" in labels else VLLM).run(figures)


def _key(label: str) -> str | None:
    if match := _LATENCY.fullmatch(label):
        return f"{match[1]}_{match[2].replace(' ', '_')}_ms"
    return _KEYS.get(label)


def _number(text: str) -> float | str:
    try:
        return float(text.replace(",", ""))
    except ValueError:
        return text


# What vllm bench latency and throughput print: vllm/benchmarks/latency.py and throughput.py.

_DECIMAL = r"(\d+(?:\.\d+)?(?:e-?\d+)?)"
_PERCENTILE = re.compile(rf"\b(50|90|99)% percentile latency: {_DECIMAL} seconds")
_RATES = r"Throughput: (\d+\.\d+) requests/s, (\d+\.\d+) total tokens/s, (\d+\.\d+) output tokens/s"
_TOKENS = re.compile(r"Total num (prompt|output) tokens: +(\d{1,15})\b")


def _offline(text: str) -> Iterator[BenchmarkRun]:
    for mean, part in _parts(rf"Avg latency: {_DECIMAL} seconds", text):
        seconds = {"mean": mean, **dict(_PERCENTILE.findall(part))}
        e2e, p50, p90, p99 = (
            figure(float(seconds.get(s, "nan")), 1e6) for s in ("mean", "50", "90", "99")
        )
        latency = Latency(e2e, p50, p90, p99)
        yield BenchmarkRun(tool=LATENCY_TOOL, e2e=latency, notes=(WHOLE_BATCH,))
    for requests, total, output, part in _parts(_RATES, text):
        tokens = {kind: int(count) for kind, count in _TOKENS.findall(part)}
        yield BenchmarkRun(
            tool=THROUGHPUT_TOOL,
            input_tokens=tokens.get("prompt"),
            output_tokens=tokens.get("output"),
            request_throughput=figure(float(requests)),
            total_throughput=figure(float(total)),
            output_throughput=figure(float(output)),
        )


def _parts(pattern: str, text: str) -> Iterator[tuple[str, ...]]:
    """The groups of each match, and the text up to the next one."""
    groups = re.compile(pattern).groups
    groups_and_texts = re.split(pattern, text)[1:]
    for at in range(0, len(groups_and_texts), groups + 1):
        yield tuple(groups_and_texts[at : at + groups + 1])


# llama-benchy's table.

_TEST = re.compile(
    r"(?<![\w/.-])(?P<context>ctx_)?(?P<kind>pp|tg)(?P<tokens>\d*)"
    r"(?: ?@ ?d(?P<depth>\d+))?(?: \(c(?P<concurrency>\d+)\))?(?=[\s|])"
)
_NUMBER = r"(\d{1,18}(?:\.\d{1,18})?)"
_VALUE = re.compile(rf"(?<!\d){_NUMBER} ± {_NUMBER}")


class _CsvRow(NamedTuple):
    """One row of a table."""

    point: tuple[str, str, str, int]  # model, context, depth and concurrency
    kind: str
    size: str
    values: list[tuple[float, float]]  # mean and standard deviation


def _benchy(text: str) -> list[BenchmarkRun]:
    """One run for each pp row with its tg row in a text, which may hold anything else.

    Pasting loses the empty cells of a table. A pp row's last value is its e2e_ttft, a tg row's
    first one its speed, whatever stood between them.
    """
    points: list[list[_CsvRow]] = []
    for line in text.splitlines():
        test = _TEST.search(line)
        matches = _VALUE.findall(line[test.end() :]) if test else []
        if not test or not matches:
            continue
        model, context = line[: test.start()].strip(" |\t"), test["context"] or ""
        concurrency = whole(float(test["concurrency"] or 1)) or 1
        point = (model, context, test["depth"] or "", concurrency)
        values = [(float(mean), float(deviation)) for mean, deviation in matches]
        row = _CsvRow(point, test["kind"], test["tokens"], values)
        before = points[-1][-1] if points else None
        if before and (before.kind, before.point, row.kind) == ("pp", row.point, "tg"):
            points[-1].append(row)
        else:
            points.append([row])
    return [_point(rows) for rows in points]


def _point(rows: list[_CsvRow]) -> BenchmarkRun:
    model, context, depth, concurrency = rows[0].point
    sizes = ", ".join(f"{row.kind}{row.size}" for row in rows)
    # Of several requests at a time the first speed is that of all, the second that of one.
    speeds = [mean for mean, _ in rows[-1].values] if rows[-1].kind == "tg" else [None]
    request_speeds = speeds[min(concurrency, 2) - 1 :] or [None]
    prompt = rows[0].values if rows[0].kind == "pp" else []
    first, deviation = prompt[-1] if len(prompt) > 1 else (None, None)
    return BenchmarkRun(
        tool=BENCHY,
        model=model,
        label=f"{context}{sizes}{f' @ d{depth}' if depth else ''}",
        concurrency=concurrency,
        output_throughput=figure(speeds[0]),
        ttft=Latency(mean=figure(first, 1e3), std=figure(deviation, 1e3)),
        tpot=inverse_speed([], request_speeds[0]),
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


def _log(text: str) -> list[BenchmarkRun]:
    """One run for each engine that a text has lines of; idle lines are left out."""
    engines: dict[str, list[tuple[float, float, int]]] = defaultdict(list)
    accepted = []
    for line in text.splitlines():
        if match := _LOG_LINE.search(line):
            prompt, generated = float(match["prompt"]), float(match["generated"])
            if prompt or generated:
                interval = prompt, generated, int(match["running"][:9])
                engines[match["engine"] or ""].append(interval)
        elif match := _ACCEPTED.search(line):
            accepted.append(float(match[1]))
    length = figure(fmean(accepted)) if accepted else None
    return [_engine_run(engine, intervals, length) for engine, intervals in engines.items()]


def _engine_run(
    engine: str, intervals: list[tuple[float, float, int]], accepted: float | None
) -> BenchmarkRun:
    token_times = [
        1e6 * running / generated
        for prompt, generated, running in intervals
        if not prompt and generated and running
    ]
    lines = f"{len(intervals)} {'line' if len(intervals) == 1 else 'lines'} of the log"
    return BenchmarkRun(
        tool="vLLM's log",
        label=f"engine {engine[-9:]}, {lines}" if engine else lines,
        mean_concurrency=fmean(running for *_, running in intervals) or None,
        output_throughput=figure(fmean(generated for _, generated, _ in intervals)),
        tpot=Latency(median=figure(median(token_times)), derived=_FROM_LINES)
        if token_times
        else Latency(),
        acceptance_length=accepted,
        notes=(_LOG_NOTE,),
    )


@dataclass(frozen=True)
class TextDialect:
    """One printed format; a text can hold several, and anything else."""

    name: str
    sign: str  # a regular expression that finds it
    read: Callable[[str], Iterable[BenchmarkRun]]
    example: str  # the shortest text that is recognised


TEXT_DIALECTS = (
    TextDialect("printed serving result", _SERVING, _serving,
                "===== Serving Benchmark Result ====="),
    TextDialect("printed offline result",
                r"Avg latency: [\d.]+ seconds|Throughput: [\d.]+ requests/s, [\d.]+ total tokens/s",
                _offline, "Avg latency: 1.5 seconds"),
    TextDialect("llama-benchy table", r"\b(?:pp|tg)\d*(?: ?@ ?d\d+)?[^\n]*? ± ", _benchy,
                "| m | tg32 | 82.01 ± 0.51 |"),
    TextDialect("vLLM log",
                r"Avg prompt throughput: [\d.]+ tokens/s, Avg generation throughput:", _log,
                "Avg prompt throughput: 0.0 tokens/s, Avg generation throughput: 1"),
)  # fmt: skip
"""All of them are looked for in a text."""


LARGEST = 256 << 20
"""Larger result files are refused, in bytes: what is read takes several times as much memory."""

_HEAD = 1 << 20  # bytes from the begin of a file by which its format is recognised

_MOST_RUNS = 10_000
_TEXTS = ("tool", "model", "label", "notes")


def recognise(path: Path) -> str | None:
    """The name of a result file's format, several joined by commas; None for any other file."""
    try:
        with open(path, "rb") as file:
            head = _text(file.read(_HEAD))
    except OSError:
        return None
    if _is_json(head):
        dialect = _json_dialect(head)
        return dialect.name if dialect else None
    return ", ".join(f.name for f in TEXT_DIALECTS if re.search(f.sign, head)) or None


def read_benchmark(path: Path) -> BenchmarkResult:
    """Reads a load generator's result."""
    text = _text(_content(path))
    if _is_json(text):
        dialect = _json_dialect(text[:_HEAD])
        runs = _read_json(path, text, dialect) if dialect else []
    else:
        runs = list(chain.from_iterable(f.read(text) for f in TEXT_DIALECTS))
    if not runs:
        tools = "vllm bench, SGLang, llama-benchy, guidellm, aiperf or genai-perf"
        raise CommandError(f"{path} holds no result of {tools}, nor lines of vLLM's log")
    if len(runs) > _MOST_RUNS:
        raise CommandError(f"{path} holds more than {_MOST_RUNS} runs; give a part of it")
    redacted = (
        replace(run, **redacted_value({name: getattr(run, name) for name in _TEXTS}))
        for run in runs
    )
    lost = []
    if not any(run.tpot.is_measured for run in runs):
        lost.append("The result has no time per output token.")
    if not any(run.requests for run in runs):
        lost.append("The result has no single requests: only its statistics can be compared.")
    return BenchmarkResult(redacted_text(str(path)), tuple(redacted), tuple(lost))


def _content(path: Path) -> bytes:
    with os_errors(f"cannot read {path}"), open(path, "rb") as file:
        content = file.read(LARGEST + 1)
    if len(content) > LARGEST:
        raise CommandError(
            f"{path} is larger than the {LARGEST >> 20} MiB that a benchmark's result may have; "
            "write it without the single requests"
        )
    return content


def _text(content: bytes) -> str:
    return content.decode("utf-8-sig", errors="replace").lstrip()


def _is_json(text: str) -> bool:
    return text[:1] in ("{", "[")


def _json_dialect(head: str) -> JsonDialect | None:
    for dialect in JSON_DIALECTS:
        if all(re.search(rf'"(?:{sign})"\s*:', head) for sign in dialect.signs):
            return dialect
    return None


def _read_json(path: Path, text: str, dialect: JsonDialect) -> list[BenchmarkRun]:
    if dialect.refusal:
        raise CommandError(f"{path} {dialect.refusal}")
    try:
        return dialect.read(list(_documents(text)))
    except (ValueError, RecursionError) as error:
        reason = " ".join(str(error).split())[:160]
        raise CommandError(f"{path} is damaged ({reason}); export it again") from error


def _documents(text: str) -> Iterator[dict[str, Any]]:
    """The objects of a file: one, or one after the other, a line each.

    Python's json writes NaN and Infinity, which are no JSON, for what was not measured.
    """
    decoder = json.JSONDecoder(parse_constant=lambda _: None)
    at = 0
    while at < len(text):
        value, at = decoder.raw_decode(text, at)
        if not isinstance(value, dict):
            raise ValueError("it is no object")
        yield value
        while text[at : at + 1].isspace():
            at += 1

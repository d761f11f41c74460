"""Tells which load generator wrote a file, by its content, and reads it within bounds."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

from spark_prof.errors import CommandError
from spark_prof.redact import redacted_text, redacted_value
from spark_prof.traces.benchmarks.json_dialects import JSON_DIALECTS, JsonDialect
from spark_prof.traces.benchmarks.load_test import BenchmarkResult, BenchmarkRun
from spark_prof.traces.benchmarks.printed import TEXT_DIALECTS

LARGEST = 256 << 20
"""Larger result files are refused, in bytes: what is read takes several times as much memory."""

_HEAD = 1 << 20
"""Bytes from the begin of a file by which its format is recognised."""

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
        found = _json_dialect(head)
        return found.name if found else None
    return ", ".join(f.name for f in TEXT_DIALECTS if re.search(f.sign, head)) or None


def read_benchmark(path: Path) -> BenchmarkResult:
    """Reads a load generator's result.

    Raises:
        CommandError: the file is missing, damaged, too large, or nobody's result.
    """
    text = _text(_content(path))
    if _is_json(text):
        found = _json_dialect(text[:_HEAD])
        runs = _read_json(path, text, found) if found else []
    else:
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


def _content(path: Path) -> bytes:
    try:
        with open(path, "rb") as file:
            content = file.read(LARGEST + 1)
    except OSError as error:
        raise CommandError(f"cannot read {path}: {error.strerror or error}") from error
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
    for known in JSON_DIALECTS:
        if all(re.search(rf'"(?:{sign})"\s*:', head) for sign in known.signs):
            return known
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


def _lost(runs: list[BenchmarkRun]) -> tuple[str, ...]:
    """What no run of a result tells."""
    lost = []
    if not any(run.tpot.known for run in runs):
        lost.append("The result has no time per output token.")
    if not any(run.requests for run in runs):
        lost.append("The result has no single requests: only its statistics can be compared.")
    return tuple(lost)

"""Reads a result file within bounds: its text, or its JSON as documents that are asked by paths.

Every figure's type is checked where it is asked for; what nobody asks for may be anything.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from spark_prof.errors import CommandError
from spark_prof.traces.benchmarks.load_test import (
    COUNTS,
    TEXTS,
    BenchmarkRun,
    Latency,
    given_latency,
)

LARGEST = 256 << 20
"""Larger result files are refused, in bytes: what is read takes several times as much memory."""

HEAD = 1 << 20
"""Bytes from the begin of a file by which its format is recognised."""

_MOST_NS = 1 << 62
_LARGEST_FIGURE = 1e15
"""No duration in us, rate or count is larger: 1e15 us are 31 years."""
_LARGEST_COUNT = 1 << 53

Number = int | float | None
"""A number as a tool wrote it: None where it wrote none."""


@dataclass(frozen=True)
class Document:
    """An object of a result file; paths such as ``metrics.request_totals.errored`` lead into it.

    What is not there, or null, is None. Every method raises ValueError where something of another
    type is in the place.
    """

    value: Mapping[str, Any]

    def at(self, path: str) -> Any:
        """Whatever is there."""
        found: Any = self.value
        for name in path.split("."):
            if not isinstance(found, dict | None):
                raise ValueError(f"{path} is in no object")
            found = found.get(name) if found else None
        return found

    def text(self, path: str) -> str:
        """A text; empty where there is none."""
        return _typed(self.at(path), path, str) or ""

    def number(self, path: str) -> Number:
        """A number."""
        return _number(self.at(path), path)

    def count(self, path: str) -> int | None:
        """A number of things."""
        value = self.number(path)
        if isinstance(value, int) and abs(value) > _LARGEST_COUNT:
            raise ValueError(f"{path} is no count")
        return whole(value)

    def items(self, path: str) -> list[Any]:
        """A list; empty where there is none."""
        return _typed(self.at(path), path, list) or []

    def numbers(self, path: str) -> list[Number]:
        """A list of numbers."""
        return [_number(value, path) for value in self.items(path)]

    def documents(self, path: str) -> list[Document]:
        """A list of objects."""
        return [_document(value, path) for value in self.items(path)]

    def latency(self, path: str, statistics: Iterable[str], factor: float) -> Latency:
        """Mean, median, p90, p99 and std by their names, which stand for {} in the path, in us."""
        return given_latency(scaled(self.number(path.format(s)), factor) for s in statistics)

    def run(self, fields: Mapping[str, str], **more: Any) -> BenchmarkRun:
        """A run with the fields at these paths, and more."""
        found: dict[str, Any] = {
            name: self.text(path)
            if name in TEXTS
            else self.count(path)
            if name in COUNTS
            else figure(self.number(path))
            for name, path in fields.items()
        }
        return BenchmarkRun(**found, **more)


def read_head(path: Path) -> str:
    """The begin of a file as text; empty for a folder or where it cannot be read."""
    try:
        with open(path, "rb") as file:
            return file.read(HEAD).decode("utf-8-sig", errors="replace")
    except OSError:
        return ""


def read_bytes(path: Path) -> bytes:
    """A whole file.

    Raises:
        CommandError: it is not there, is no file, or is larger than LARGEST.
    """
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
    return content.removeprefix(b"\xef\xbb\xbf")


def documents(content: bytes) -> list[Document]:
    """The JSON documents of a file: one, or one a line.

    Raises:
        ValueError: it is damaged.
    """
    try:
        return [_decoded(content)]
    except (ValueError, RecursionError):
        lines = [line for line in content.splitlines() if line.strip()]
        if len(lines) < 2:
            raise
    found = []
    for number, line in enumerate(lines, 1):
        try:
            found.append(_decoded(line))
        except (ValueError, RecursionError) as error:
            raise ValueError(f"line {number}: {error}") from error
    return found


def _decoded(content: bytes) -> Document:
    try:
        value = msgspec.json.decode(content)
    except msgspec.DecodeError:
        # Python's json writes NaN and Infinity, which are no JSON, for what was not measured.
        if b"NaN" not in content and b"Infinity" not in content:
            raise
        value = json.loads(content, parse_constant=lambda _: None)
    return _document(value, "it")


def _document(value: Any, path: str) -> Document:
    if not isinstance(value, dict):
        raise ValueError(f"{path} is no object")
    return Document(value)


def _typed(value: Any, path: str, kind: type) -> Any:
    if value is not None and not isinstance(value, kind):
        raise ValueError(f"{path} is no {kind.__name__}")
    return value


def _number(value: Any, path: str) -> Number:
    if value is None or (isinstance(value, int | float) and not isinstance(value, bool)):
        return value
    raise ValueError(f"{path} is no number")


def figure(value: Number) -> float | None:
    """A duration, rate or share; None where it is negative, endless or NaN, so not measured."""
    return float(value) if value is not None and 0 <= value <= _LARGEST_FIGURE else None


def scaled(value: Number, factor: float) -> float | None:
    """A figure in another unit."""
    known = figure(value)
    return None if known is None else figure(known * factor)


def whole(value: Number) -> int | None:
    """A number of things; None where it is no number that can be counted to."""
    known = figure(value)
    return None if known is None else round(known)


def epoch_ns(seconds: Number) -> int | None:
    """Seconds on some clock in whole ns, without losing the digits of a float of ns."""
    known = figure(seconds)
    if known is None or known > _MOST_NS / 1e9:
        return None
    full = int(known)
    return full * 1_000_000_000 + round((known - full) * 1e9)

"""Reads a result file within bounds: its text, or its JSON as one of the structures declared here.

Declared structures check every field's type and skip what nobody asked for, such as the generated
texts, without building it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, TypeVar

import msgspec

from spark_prof.errors import CommandError

LARGEST = 256 << 20
"""Larger result files are refused, in bytes: what is read takes several times as much memory."""

HEAD = 1 << 20
"""Bytes from the begin of a file by which its format is recognised."""

_MOST_NS = 1 << 62
_LARGEST_FIGURE = 1e15
"""No duration in us, rate or count is larger: 1e15 us are 31 years."""

T = TypeVar("T")

Figure = float | None
"""A number as a tool wrote it: None where it wrote none."""

Count = Annotated[int, msgspec.Meta(ge=-(1 << 53), le=1 << 53)] | None
"""A number of things as a tool wrote it."""


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


def read_text(path: Path) -> str:
    """A whole file as text; bytes that are no UTF-8 become replacement characters."""
    return read_bytes(path).decode("utf-8", errors="replace")


def decode(path: Path, kind: type[T]) -> T:
    """A JSON file as a structure.

    Raises:
        CommandError: it is damaged, or a field has another type.
    """
    content = read_bytes(path)
    try:
        return _decoded(content, kind)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise _damaged(path, error) from error


def decode_lines(path: Path, kind: type[T]) -> list[T]:
    """A file of one or several JSON documents, one a line, as structures.

    Raises:
        CommandError: it is damaged, or a field has another type.
    """
    content = read_bytes(path)
    try:
        return [_decoded(content, kind)]
    except (msgspec.MsgspecError, ValueError, RecursionError):
        lines = [line for line in content.splitlines() if line.strip()]
        if len(lines) < 2:
            return [decode(path, kind)]
    found = []
    for number, line in enumerate(lines, 1):
        try:
            found.append(_decoded(line, kind))
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise _damaged(path, error, f" in line {number}") from error
    return found


def _decoded(content: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(content, type=kind)
    except msgspec.ValidationError:
        raise
    except msgspec.DecodeError:
        # Python's json writes NaN and Infinity, which are no JSON, for what was not measured.
        if b"NaN" not in content and b"Infinity" not in content:
            raise
        value = json.loads(content, parse_constant=lambda _: None)
        return msgspec.convert(value, kind)


def _damaged(path: Path, error: Exception, where: str = "") -> CommandError:
    reason = " ".join(str(error).split())[:160]
    return CommandError(f"{path} is damaged{where} ({reason}); export it again")


def figure(value: Figure) -> float | None:
    """A duration, rate or share; None where it is negative, endless or NaN, so not measured."""
    return float(value) if value is not None and 0 <= value <= _LARGEST_FIGURE else None


def scaled(value: Figure, factor: float) -> float | None:
    """A figure in another unit."""
    known = figure(value)
    return None if known is None else figure(known * factor)


def whole(value: Figure) -> int | None:
    """A number of things; None where it is no number that can be counted to."""
    known = figure(value)
    return None if known is None else round(known)


def epoch_ns(seconds: Figure) -> int | None:
    """Seconds on some clock in whole ns, without losing the digits of a float of ns."""
    known = figure(seconds)
    if known is None or known > _MOST_NS / 1e9:
        return None
    full = int(known)
    return full * 1_000_000_000 + round((known - full) * 1e9)

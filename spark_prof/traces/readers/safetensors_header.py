"""Reads what a safetensors file says of its tensors, and never the tensors themselves.

The format: 8 bytes, little-endian, the length of a JSON object; that object, from a tensor's name
to its dtype, shape and place in the data; the data. Source: huggingface/safetensors, README.md.
The package `safetensors` refuses a file that is cut short, or that has one entry which it does not
know, as a whole; here is told what such a file holds, and what is missing.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import msgspec

LARGEST_HEADER = 100_000_000
"""The longest header that the format's own reader takes, in bytes."""

_MOST_DIMENSIONS = 16
_LARGEST_TENSOR = 1 << 50
_LONGEST_NAME = 1000
_LFS_POINTER = b"version https://git-lfs"

BITS = {
    "BOOL": 8, "U8": 8, "I8": 8, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8,
    "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8, "I16": 16, "U16": 16, "F16": 16, "BF16": 16,
    "I32": 32, "U32": 32, "F32": 32, "I64": 64, "U64": 64, "F64": 64, "C64": 64,
    "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6,
}  # fmt: skip
"""Bits of one element, by the format's name of its type."""


class HeaderError(Exception):
    """A file whose header cannot be read; the text says why, without the file's name."""


@dataclass(frozen=True)
class Tensor:
    """One tensor as its header describes it."""

    name: str
    dtype: str  # the format's name of its type, such as BF16 or F8_E4M3
    shape: tuple[int, ...]  # of what is stored; of packed weights that is not the matrix's shape
    bytes: int  # what it takes in the file


@dataclass(frozen=True)
class Header:
    """What a file says of its tensors."""

    tensors: tuple[Tensor, ...]
    refused: int  # entries that cannot be true, such as a negative size
    missing_bytes: int  # how much shorter the file is than its header says
    overlapping: bool  # whether tensors share data


class _Entry(msgspec.Struct):
    dtype: str = ""
    shape: list[int] = []
    data_offsets: list[int] = []


def read_header(path: Path) -> Header:
    """Reads the header of one file.

    Raises:
        HeaderError: the file is no safetensors file, is cut short within its header, or lies.
        OSError: it cannot be read.
    """
    with open(path, "rb") as file:
        begin = file.read(8)
        if begin and _LFS_POINTER.startswith(begin):
            raise HeaderError("is a Git LFS pointer, not the file; git lfs pull fetches it")
        if len(begin) < 8:
            raise HeaderError("is cut short before its header")
        length = int.from_bytes(begin, "little")
        if length > LARGEST_HEADER:
            raise HeaderError(f"is no safetensors file: its header would be {length:,} bytes long")
        text = file.read(length)
        size = file.seek(0, 2)
    if len(text) < length:
        raise HeaderError(f"is cut short in its header, after {len(text):,} of {length:,} bytes")
    entries = list(_entries(text))
    made = [(_tensor(name, entry), entry) for name, entry in entries]
    kept = [(tensor, entry.data_offsets) for tensor, entry in made if tensor and entry]
    spans = sorted((first, last) for _, (first, last) in kept)
    end = max((last for _, last in spans), default=0)
    return Header(
        tensors=tuple(tensor for tensor, _ in kept),
        refused=len(entries) - len(kept),
        missing_bytes=max(8 + length + end - size, 0),
        overlapping=any(after[0] < before[1] for before, after in pairwise(spans)),
    )


def _entries(text: bytes) -> Iterator[tuple[str, _Entry | None]]:
    """Every entry of the header, None for one that is none."""
    try:
        entries: dict[str, msgspec.Raw] = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise HeaderError(f"has a header that is no JSON object of tensors: {error}") from error
    decoder = msgspec.json.Decoder(_Entry)
    for name, raw in entries.items():
        if name == "__metadata__":
            continue
        try:
            yield name, decoder.decode(raw)
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
            yield name, None


def _tensor(name: str, entry: _Entry | None) -> Tensor | None:
    """The tensor of an entry, None where it cannot be true."""
    if entry is None or len(entry.shape) > _MOST_DIMENSIONS or len(name) > _LONGEST_NAME:
        return None
    if any(not 0 <= size <= _LARGEST_TENSOR for size in entry.shape):
        return None
    offsets = entry.data_offsets
    if len(offsets) != 2 or not 0 <= offsets[0] <= offsets[1] <= _LARGEST_TENSOR:
        return None
    stored = offsets[1] - offsets[0]
    bits = BITS.get(entry.dtype)
    if bits is not None and -(-math.prod(entry.shape) * bits // 8) != stored:
        return None
    return Tensor(name, entry.dtype, tuple(entry.shape), stored)

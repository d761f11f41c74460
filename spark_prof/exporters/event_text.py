"""Writes many trace events as JSON at once: columns become text in Arrow, not row by row.

Format: Chrome's Trace Event Format, as libkineto writes it and Perfetto reads it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

_TEXT = pa.large_string()
_NOTHING = pa.scalar("", _TEXT)
_TRIPLE = re.compile(r"\d{1,10}(,\d{1,10}){0,2}")


def events(*parts: str | pa.Array) -> memoryview:
    """The parts of each row joined, one row after another; a text is the same in every row."""
    scalars = [pa.scalar(p, _TEXT) if isinstance(p, str) else p for p in (*parts, "")]
    joined = pc.binary_join_element_wise(*scalars)
    _, offsets, content = joined.buffers()
    if content is None:
        return memoryview(b"")
    return memoryview(content)[: int(np.frombuffer(offsets, np.int64)[len(joined)])]


def numbers(values: pd.Series | npt.NDArray[np.int64], none: int | None = None) -> pa.Array:
    """Integers; `none` is the one that is written as null."""
    whole = pa.array(np.asarray(values, np.int64))
    text = whole.cast(_TEXT)
    return text if none is None else pc.if_else(pc.equal(whole, none), "null", text)


def microseconds(nanoseconds: npt.NDArray[np.int64]) -> pa.Array:
    """Times in us with three decimals, so that no nanosecond is lost; none may be negative."""
    whole, rest = np.divmod(nanoseconds, 1000)
    digits = pa.array([f".{number:03d}" for number in range(1000)], _TEXT)
    return pc.binary_join_element_wise(numbers(whole), digits.take(pa.array(rest)), _NOTHING)


def choices(codes: npt.NDArray[np.integer[Any]], written: Sequence[str]) -> pa.Array:
    """For each code the text at that place, which is JSON already."""
    return pa.array(list(written), _TEXT).take(pa.array(codes))


def texts(values: pd.Series, none: str | None = None) -> pa.Array:
    """Categories as JSON strings; `none` is the one that is written as null."""
    written = [
        "null" if name == none and none is not None else json.dumps(str(name))
        for name in values.cat.categories
    ]
    return choices(values.cat.codes.to_numpy(), written)


def triples(values: pd.Series) -> pa.Array:
    """Categories such as `2,1,1` as lists of numbers; anything else is an empty list."""
    written = [
        f"[{','.join(str(int(part)) for part in name.split(','))}]"
        if _TRIPLE.fullmatch(name)
        else "[]"
        for name in map(str, values.cat.categories)
    ]
    return choices(values.cat.codes.to_numpy(), written)

"""What lies in the folder of a prepared source: the report first, then kernels and steps.

The report is MessagePack, checked against the types of `analyzers.model` when it is read; kernels
are arrays that the reader maps; steps and layers are Parquet. What is read is taken for whole only
if no number in it leads out of its table.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from spark_prof.analyzers.model import Report
from spark_prof.analyzers.views.columns import KernelColumns, Launch
from spark_prof.traces.prepared_files import DamagedError, FilesReader, FilesWriter
from spark_prof.traces.some_steps import Share
from spark_prof.vocabulary import COMPONENTS

__all__ = ["Opening", "Rest", "decode_opening", "encode_opening", "read_rest", "write_rest"]

_DTYPES: dict[str, npt.DTypeLike] = {
    "start_ns": np.int64, "end_ns": np.int64, "step": np.int32, "layer": np.int16,
    "component": np.uint8, "name": np.int32, "launch": np.int32, "stream": np.uint16,
}  # fmt: skip
"""The arrays of `KernelColumns`."""


@dataclass(frozen=True)
class Opening:
    """What the first page needs.

    Attributes:
        rank: that was read.
        ranks: that there are.
        live: whether the source was still being recorded.
        timed: whether anything tells when the kernels ran.
        share: what the report was made of; None for all of it.
    """

    rank: int
    ranks: tuple[int, ...]
    live: bool
    timed: bool
    report: Report
    share: Share | None = None


@dataclass(frozen=True)
class Rest:
    """What the other pages need."""

    kernels: KernelColumns
    steps: pd.DataFrame
    layers: pd.DataFrame


class _Kinds(msgspec.Struct, frozen=True):
    """What the numbers in the arrays stand for."""

    names: tuple[str, ...]
    copies: tuple[bool, ...]
    launches: tuple[Launch, ...]
    streams: tuple[str, ...]


def encode_opening(opening: Opening) -> bytes:
    """The opening as bytes, from which it comes back as it was."""
    try:
        return msgspec.msgpack.encode(opening, enc_hook=_plain)
    except UnicodeEncodeError:  # half a surrogate pair, as in a path that is no UTF-8
        return msgspec.msgpack.encode(_readable(msgspec.to_builtins(opening, enc_hook=_plain)))


def decode_opening(content: bytes) -> Opening:
    """The opening.

    Raises:
        DamagedError: it is none.
    """
    try:
        return msgspec.msgpack.decode(content, type=Opening)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise DamagedError(f"the report: {error}") from error


def write_rest(writer: FilesWriter, rest: Rest) -> None:
    """Writes the rest; the folder is whole when this returns.

    Raises:
        OSError: it cannot be written.
    """
    kernels = rest.kernels
    for name in _DTYPES:
        writer.array(name, getattr(kernels, name))
    kinds = _Kinds(kernels.names, kernels.copies, kernels.launches, kernels.streams)
    writer.small("kinds", msgspec.msgpack.encode(kinds))
    writer.small("steps", _parquet(rest.steps))
    writer.small("layers", _parquet(rest.layers))
    writer.finish()


def read_rest(reader: FilesReader) -> Rest:
    """The rest, the arrays mapped into memory.

    Raises:
        DamagedError: a file is not as it was written, or what it says cannot be.
    """
    try:
        kinds = msgspec.msgpack.decode(reader.small("kinds"), type=_Kinds)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise DamagedError(f"kinds: {error}") from error
    arrays: dict[str, npt.NDArray[Any]] = {}
    rows = None
    for name, dtype in _DTYPES.items():
        arrays[name] = reader.array(name, dtype, rows)
        rows = len(arrays[name])
    kernels = KernelColumns(
        **arrays,
        names=kinds.names,
        copies=kinds.copies,
        launches=kinds.launches,
        streams=kinds.streams,
    )
    _check(kernels)
    return Rest(kernels, _frame(reader.small("steps")), _frame(reader.small("layers")))


def _check(kernels: KernelColumns) -> None:
    """Refuses numbers that lead out of the tables that they point into."""
    bounds = {
        "step": (-1, None),
        "layer": (-1, None),
        "component": (0, len(COMPONENTS)),
        "name": (0, len(kernels.names)),
        "launch": (0, len(kernels.launches)),
        "stream": (0, len(kernels.streams)),
    }
    if len(kernels.copies) != len(kernels.names):
        raise DamagedError("kinds: not every name is there")
    for column, (lowest, beyond) in bounds.items():
        values = getattr(kernels, column)
        if len(values) and (
            values.min() < lowest or (beyond is not None and values.max() >= beyond)
        ):
            raise DamagedError(f"{column} leads out of its table")


def _parquet(frame: pd.DataFrame) -> bytes:
    file = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pandas(frame), file, compression="zstd")
    return bytes(file.getvalue().to_pybytes())


def _frame(content: bytes) -> pd.DataFrame:
    try:
        frame: pd.DataFrame = pq.read_table(pa.BufferReader(content)).to_pandas()
    except (OSError, ValueError, KeyError, TypeError, MemoryError, pa.ArrowException) as error:
        raise DamagedError(f"a table: {error}") from error
    return frame


def _plain(value: object) -> object:
    """A number of NumPy as Python's."""
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"a report holds a {type(value).__name__}")


def _readable(value: Any) -> Any:
    """The same value without half surrogate pairs in its texts."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, (list, tuple)):
        return [_readable(item) for item in value]
    if isinstance(value, dict):
        return {_readable(key): _readable(item) for key, item in value.items()}
    return value

"""Reads columns of a large Parquet file straight into arrays, on every core.

Arrow would hold a whole table beside the arrays that are made of it, and both are new memory, whose
first use costs more than decoding does. Here a few row groups at a time are decoded and copied to
their place, so that only the arrays grow with the file.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from spark_prof.cores import cores

Array = npt.NDArray[Any]

_ROWS_AT_ONCE = 1 << 18


def is_array(kind: pa.DataType) -> bool:
    """Whether a column of that type becomes an array of numbers, or of codes with their names."""
    return bool(
        pa.types.is_integer(kind)
        or pa.types.is_floating(kind)
        or pa.types.is_boolean(kind)
        or pa.types.is_dictionary(kind)
    )


def read_columns(path: Path, schema: pa.Schema) -> dict[str, Array | pd.Categorical]:
    """The columns of that schema; names become categories, in order of appearance.

    Raises:
        ValueError: a value is missing.
        OSError, pa.ArrowException, UnicodeDecodeError: the file is damaged.
    """
    metadata = pq.read_metadata(path)
    groups = metadata.num_row_groups
    first = np.cumsum([0] + [metadata.row_group(g).num_rows for g in range(groups)])
    arrays = {f.name: np.empty(int(first[-1]), _dtype(f.type)) for f in schema}
    threads = max(1, min(cores(), groups))
    bounds = [groups * part // threads for part in range(threads + 1)]
    parts = [_Part(path, schema, first[a : b + 1], a, arrays) for a, b in pairwise(bounds)]
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(_Part.read, parts))
    return {
        f.name: _joined(arrays[f.name], f.name, parts)
        if pa.types.is_dictionary(f.type)
        else arrays[f.name]
        for f in schema
    }


class _Part:
    """Row groups that one thread reads.

    Attributes:
        rows: the rows of the whole file that they are.
        names: for each column of names those that occur, with the code that stands for them here.
    """

    def __init__(
        self, path: Path, schema: pa.Schema, first: Array, group: int, arrays: dict[str, Array]
    ) -> None:
        self.rows = slice(int(first[0]), int(first[-1]))
        self.names: dict[str, dict[str, int]] = {
            f.name: {} for f in schema if pa.types.is_dictionary(f.type)
        }
        self._path, self._schema, self._arrays = path, schema, arrays
        self._first, self._group = first, group

    def read(self) -> None:
        """Fills the part's rows of the arrays."""
        with pq.ParquetFile(self._path, read_dictionary=list(self.names)) as file:
            for groups in self._at_once():
                table = file.read_row_groups(groups, columns=self._schema.names, use_threads=False)
                start = int(self._first[groups[0] - self._group])
                for name in self._schema.names:
                    self._copy(name, table.column(name), start)

    def _at_once(self) -> Sequence[list[int]]:
        """The row groups, in lists of not many more rows than are read at once."""
        batch = (self._first[:-1] - self._first[0]) // _ROWS_AT_ONCE
        numbers = np.arange(len(batch)) + self._group
        return [part.tolist() for part in np.split(numbers, np.flatnonzero(np.diff(batch)) + 1)]

    def _copy(self, name: str, column: pa.ChunkedArray, start: int) -> None:
        if column.null_count:
            raise ValueError(f"{name} lacks values")
        for chunk in column.chunks:
            values = self._codes(name, chunk) if name in self.names else chunk
            own = values.to_numpy(zero_copy_only=False) if isinstance(values, pa.Array) else values
            self._arrays[name][start : start + len(chunk)] = own
            start += len(chunk)

    def _codes(self, name: str, chunk: pa.DictionaryArray) -> Array:
        """The part's codes for a piece of a column of names."""
        known = self.names[name]
        own = [known.setdefault(text, len(known)) for text in chunk.dictionary.to_pylist()]
        codes: Array = np.array([*own, 0], np.int32)[chunk.indices.to_numpy()]
        return codes


def _joined(codes: Array, name: str, parts: Sequence[_Part]) -> pd.Categorical:
    """A column of names, with the same codes for all parts."""
    known: dict[str, int] = {}
    for part in parts:
        own = [known.setdefault(text, len(known)) for text in part.names[name]]
        if own != list(range(len(own))):
            codes[part.rows] = np.array(own, np.int32)[codes[part.rows]]
    names = pd.Index(list(known), dtype=object if not known else None)
    return pd.Categorical.from_codes(codes, categories=names, validate=False)


def _dtype(kind: pa.DataType) -> Any:
    return np.int32 if pa.types.is_dictionary(kind) else kind.to_pandas_dtype()

"""Reads columns of millions of rows: each a row group at a time, into one array.

What a column holds is copied once and no more than its own array is ever touched. One that is zero
all through, such as the bytes of kernels, takes no memory: the system gives pages when they are
written to.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

Values = npt.NDArray[Any]


class LargeColumn:
    """One column that is filled from its first row on.

    Args:
        kind: its type; names become categories, in the order in which they are met.
        rows: how many it will have.
    """

    def __init__(self, kind: pa.DataType, rows: int) -> None:
        self._names: dict[str, int] | None = {} if pa.types.is_dictionary(kind) else None
        self._dtype = np.dtype(np.int8 if self._names is not None else kind.to_pandas_dtype())
        self._rows, self._filled = rows, 0
        self._values: Values | None = None  # None while all are zero
        self._dictionary: pa.Array | None = None
        self._codes: Values = np.zeros(0, np.int8)  # of the dictionary's names

    def add(self, values: pa.Array) -> None:
        """The next rows, none of them null."""
        if self._names is None:
            self._put(values.to_numpy(zero_copy_only=False))
            return
        if self._dictionary is None or not values.dictionary.equals(self._dictionary):
            self._dictionary = values.dictionary
            self._codes = self._codes_of(values.dictionary.to_pylist())
        indices = values.indices.to_numpy(zero_copy_only=False)
        if not np.array_equal(self._codes, np.arange(len(self._codes))):
            indices = self._codes[indices]
        self._put(indices)

    def of_one(self, value: int | str) -> Values | pd.Categorical:
        """The column, where all rows have this value."""
        code = self._codes_of([value])[0] if isinstance(value, str) else value
        if code:
            self._values = np.full(self._rows, code, self._dtype)
        return self.filled()

    def filled(self) -> Values | pd.Categorical:
        """The column with all rows."""
        values = self._values
        if values is None:
            values = np.zeros(self._rows, self._dtype)
        if self._names is None:
            return values
        # As pyarrow has the names, whatever pandas takes a text for.
        names = pa.array(self._names, pa.string())
        none = pa.DictionaryArray.from_arrays(pa.array([], pa.int8()), names)
        return pd.Categorical.from_codes(values, dtype=none.to_pandas().dtype)

    def _codes_of(self, names: Iterable[str]) -> Values:
        assert self._names is not None
        codes = [self._names.setdefault(name, len(self._names)) for name in names]
        self._widen(np.min_scalar_type(-max(len(self._names), 1)))
        return np.array(codes, self._dtype)

    def _widen(self, dtype: np.dtype[Any]) -> None:
        if dtype.itemsize <= self._dtype.itemsize:
            return
        self._dtype = dtype
        if self._values is not None:
            wider = np.empty(self._rows, dtype)
            wider[: self._filled] = self._values[: self._filled]
            self._values = wider

    def _put(self, values: Values) -> None:
        first, self._filled = self._filled, self._filled + len(values)
        if self._values is None:
            if not values.any():
                return
            self._values = np.empty(self._rows, self._dtype)
            self._values[:first] = 0
        self._values[first : self._filled] = values


def only_value(file: pq.ParquetFile, name: str) -> int | str | None:
    """What all rows of a column have, as its file says; None where they differ or it says nothing.

    Of texts only the empty one: of a long one a file may say how it begins.
    """
    at, values = file.schema_arrow.get_field_index(name), set()
    for group in range(file.num_row_groups):
        statistics = file.metadata.row_group(group).column(at).statistics
        if (
            statistics is None
            or not statistics.has_min_max
            or statistics.null_count
            or statistics.min != statistics.max
        ):
            return None
        values.add(statistics.min)
    value = values.pop() if len(values) == 1 else None
    return value if value == "" or type(value) is int else None

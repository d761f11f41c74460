"""Columns that are filled while a trace is read, without a copy at its end."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd


class Names:
    """A categorical column's names, numbered as they come.

    Args:
        name_of: the name that stands for a value; several values may have the same.
    """

    def __init__(self, name_of: Callable[[int], str]) -> None:
        self._name_of = name_of
        self._by_value: dict[int, int] = {}
        self._by_name: dict[str, int] = {}

    def code(self, value: int) -> int:
        """The number of the value's name."""
        if value not in self._by_value:
            number = self._by_name.setdefault(self._name_of(value), len(self._by_name))
            self._by_value[value] = number
        return self._by_value[value]

    def number(self, name: str) -> int:
        """The number of that name."""
        return self._by_name.setdefault(name, len(self._by_name))

    def column(self, codes: npt.NDArray[np.int32]) -> pd.Categorical:
        """The column with these numbers."""
        names = pd.Index(list(self._by_name), dtype=object)
        return pd.Categorical.from_codes(codes, categories=names)


class Columns:
    """Columns of one length, as arrays that are filled from the front.

    Args:
        types: name and dtype of each column.
        expected: room for that many rows. Room that is not used takes no memory, because the
            system gives memory only when it is written to.
    """

    def __init__(self, types: Mapping[str, str], expected: int) -> None:
        self._arrays = {name: np.zeros(expected, kind) for name, kind in types.items()}
        self._count, self._room = 0, expected

    def add(self, count: int) -> dict[str, npt.NDArray[Any]]:
        """That many more rows of each column, zero, to be written before the next call."""
        begin, self._count = self._count, self._count + count
        if self._count > self._room:
            more = max(self._room, count)
            self._room += more
            for name, array in self._arrays.items():
                self._arrays[name] = np.concatenate([array, np.zeros(more, array.dtype)])
        return {name: array[begin : self._count] for name, array in self._arrays.items()}

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """The columns as far as they are filled."""
        return {name: array[: self._count] for name, array in self._arrays.items()}

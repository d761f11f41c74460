"""Looks numbers up, and tells what is sorted already: both for millions of rows.

They are worked on a block at a time, on every core: what is computed on the way to a result stays
in the processor's cache, and no array of the whole length is made for it. NumPy lets go of the
interpreter while it computes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Literal, TypeVar

import numpy as np
import numpy.typing as npt
import pandas as pd

from spark_prof.arrays import Flags
from spark_prof.cores import cores
from spark_prof.vocabulary import COPIES

BLOCK = 1 << 17
_Result = TypeVar("_Result")


def by_blocks(
    rows: int, dtype: npt.DTypeLike, values_of: Callable[[slice], npt.NDArray[Any]]
) -> npt.NDArray[Any]:
    """An array of so many rows, of which `values_of` gives the rows of a slice."""
    values = np.empty(rows, dtype)

    def fill(block: slice) -> None:
        values[block] = values_of(block)

    of_blocks(rows, fill)
    return values


def of_blocks(rows: int, result_of: Callable[[slice], _Result]) -> list[_Result]:
    """What a function returns of the rows of each slice, in their order."""
    starts = range(0, rows, BLOCK)
    return at_once(*(partial(result_of, slice(at, min(at + BLOCK, rows))) for at in starts))


def at_once(*tasks: Callable[[], _Result]) -> list[_Result]:
    """The results of tasks that need nothing of each other, in their order.

    # bar: a report of 10 M kernels in 4 s
    """
    if len(tasks) < 2:
        return [task() for task in tasks]
    with ThreadPoolExecutor(cores()) as pool:
        return list(pool.map(lambda task: task(), tasks))


Integers = npt.NDArray[np.signedinteger[Any]]
Positions = npt.NDArray[np.int32]

_SMALL_TABLE = 1 << 16


class NameColumn:
    """A column of names: one look at each distinct one, however many rows there are."""

    def __init__(self, column: pd.Series) -> None:
        self._names: Iterable[str] = column.cat.categories
        self._code = column.cat.codes.to_numpy()

    def flags(self, true_of: Callable[[str], bool]) -> Flags:
        """Whether something is true of the name of each row."""
        return self._looked_up(np.array([*map(true_of, self._names), False]))

    def codes(self, code_of: Callable[[str], int]) -> npt.NDArray[np.int8]:
        """A small number for the name of each row, -1 for a row without one."""
        return self._looked_up(np.array([*map(code_of, self._names), -1], np.int8))

    def _looked_up(self, table: npt.NDArray[Any]) -> npt.NDArray[Any]:
        if (table == table[-1]).all():
            return np.full(len(self._code), table[-1])
        return by_blocks(len(self._code), table.dtype, lambda block: table[self._code[block]])


def copies_in(kernels: pd.DataFrame) -> Flags:
    """Which rows of kernels are copies or memsets."""
    return NameColumn(kernels["kind"]).flags(lambda kind: kind in COPIES)


def positions(ascending: Integers, numbers: Integers) -> Positions:
    """Where each of the numbers stands among the ascending ones, -1 where it is none of them.

    The ascending numbers are distinct.
    """
    if not len(ascending):
        return np.full(len(numbers), -1, np.int32)
    lowest, highest = int(ascending[0]), int(ascending[-1])
    span = highest - lowest + 1
    # Numbers that were counted up are found in a table, scattered ones by their hash.
    if span > max(len(numbers), _SMALL_TABLE):
        return pd.Index(ascending).get_indexer(pd.Index(numbers)).astype(np.int32)
    table = np.full(span + 1, -1, np.int32)
    table[ascending.astype(np.int64) - lowest] = np.arange(len(ascending), dtype=np.int32)
    # As an unsigned number a difference below 0 is larger than any span.
    unsigned = np.dtype(f"u{numbers.dtype.itemsize}")
    zero, last = np.array(lowest, numbers.dtype).view(unsigned), unsigned.type(span)

    def block_positions(block: slice) -> Positions:
        places: Positions = table[np.minimum(numbers[block].view(unsigned) - zero, last)]
        return places

    return by_blocks(len(numbers), np.int32, block_positions)


def combined(*columns: pd.Series | npt.NDArray[Any]) -> tuple[Integers, Integers]:
    """The number of each row's combination of values, and the first row of each combination.

    Codes and other numbers that lie near together are counted in a table. Numbers are in order of
    first occurrence.

    Example:
        >>> combined(np.array([5, 5, 6]), np.array([1, 1, 0]))
        (array([0, 0, 1]), array([0, 2]))
    """
    rows = len(columns[0])
    largest = max(rows, _SMALL_TABLE)
    code, codes = np.zeros(rows, np.int64), min(rows, 1)
    for column in columns:
        values = column.cat.codes if isinstance(column.dtype, pd.CategoricalDtype) else column
        values = np.asarray(values)
        lowest = int(values.min(initial=0))
        span = int(values.max(initial=0)) - lowest + 1
        if span > largest:
            values = pd.factorize(values)[0]
            lowest, span = 0, int(values.max(initial=0)) + 1
        if codes * span > largest:
            code, first = _numbered(code, codes)
            codes = len(first)
        code = _joined(code, values, lowest, span)
        codes *= span
    return _numbered(code, codes)


def _joined(code: Integers, values: npt.NDArray[Any], lowest: int, span: int) -> Integers:
    def joined(block: slice) -> Integers:
        both = code[block] * span
        both += values[block]
        both -= lowest
        return both

    return by_blocks(len(code), np.int64, joined)


def _numbered(code: Integers, codes: int) -> tuple[Integers, Integers]:
    """Numbers in order of first occurrence, and the row of each first occurrence."""
    rows = len(code)
    if codes > max(rows, _SMALL_TABLE):
        code, distinct = pd.factorize(code)
        codes = len(distinct)
    first = np.full(codes, rows)
    first[code[::-1]] = np.arange(rows - 1, -1, -1)
    occurs = np.flatnonzero(first < rows)
    order = occurs[np.argsort(first[occurs], kind="stable")]
    place = np.zeros(codes, np.int64)
    place[order] = np.arange(len(order))
    return by_blocks(rows, np.int64, lambda block: place[code[block]]), first[order]


def ascends(*keys: Integers) -> bool:
    """Whether the rows ascend by these keys, the first one weighing most."""
    equal: Flags | Literal[True] = True
    for key in keys:
        before, after = key[:-1], key[1:]
        falls = after < before
        falls &= equal
        if falls.any():
            return False
        if key is not keys[-1]:
            equal = equal & (after == before)
    return True


def mapping_in(facts: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """The mapping of that name among facts that somebody recorded; an empty one where none is."""
    value = facts.get(name)
    return value if isinstance(value, Mapping) else {}

"""Looks numbers up, and tells what is sorted already: both for millions of rows.

They are worked on a block at a time, on every core: what is computed on the way to a result stays
in the processor's cache, and no array of the whole length is made for it. NumPy lets go of the
interpreter while it computes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Literal, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import pandas as pd

from spark_prof.arrays import Flags
from spark_prof.cores import cores
from spark_prof.vocabulary import COPIES

BLOCK = 1 << 17
_SUMMED = 64  # blocks whose sums are held at a time
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
    return at_once(*(partial(result_of, block) for block in _blocks_of(rows)))


def _blocks_of(rows: int) -> list[slice]:
    """The rows in slices of at most `BLOCK`, in their order."""
    return [slice(at, min(at + BLOCK, rows)) for at in range(0, rows, BLOCK)]


def sums_of_blocks(
    rows: int, count: int, length: int, sums_of: Callable[[slice], Sequence[npt.NDArray[Any]]]
) -> list[npt.NDArray[np.float64]]:
    """So many arrays of one length, each the sum of what a function returns of each slice."""
    totals = [np.zeros(length) for _ in range(count)]
    blocks = _blocks_of(rows)
    # Added up in their order a few at a time, so that rounding is the same each time.
    for at in range(0, len(blocks), _SUMMED):
        pending = blocks[at : at + _SUMMED]
        for sums in at_once(*(partial(sums_of, block) for block in pending)):
            for total, added in zip(totals, sums, strict=True):
                total += added
    return totals


def at_once(*tasks: Callable[[], _Result]) -> list[_Result]:
    """The results of tasks that need nothing of each other, in their order.

    # bar: a report of 10 M kernels in 4 s
    """
    if len(tasks) < 2:
        return [task() for task in tasks]
    results: list[Any] = [None] * len(tasks)
    numbered = iter(enumerate(tasks))

    def work() -> None:
        # The next task is taken under the interpreter's lock.
        for place, task in numbered:
            results[place] = task()

    # This thread works as well.
    helpers = min(cores(), len(tasks)) - 1
    with ThreadPoolExecutor(max(helpers, 1)) as pool:
        futures = [pool.submit(work) for _ in range(helpers)]
        work()
    for future in futures:
        future.result()
    return results


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
    code, codes = np.zeros(rows, np.int8), min(rows, 1)
    joined: list[_Digits] = []
    for column in columns:
        digits = _digits_of(column, largest)
        if codes * digits.span > largest:
            code, first = _numbered(_joined(code, joined), codes)
            codes, joined = len(first), []
        joined.append(digits)
        codes *= digits.span
    return _numbered(_joined(code, joined), codes)


class _Digits(NamedTuple):
    """The values of a column as numbers from `lowest` on, and how many those are."""

    values: npt.NDArray[Any]
    lowest: int
    span: int


def _digits_of(column: pd.Series | npt.NDArray[Any], largest: int) -> _Digits:
    if isinstance(column.dtype, pd.CategoricalDtype):
        span = len(column.cat.categories) + 1
        if span <= largest:
            return _Digits(column.cat.codes.to_numpy(), -1, span)
        column = column.cat.codes
    values = np.asarray(column)
    if values.dtype.kind not in "biu":
        values = pd.factorize(values)[0]
    lowest = int(values.min(initial=0))
    span = int(values.max(initial=0)) - lowest + 1
    if span > largest:
        values = pd.factorize(values)[0]
        lowest, span = 0, int(values.max(initial=0)) + 1
    return _Digits(values, lowest, span)


def _joined(code: Integers, columns: Iterable[_Digits]) -> Integers:
    """One number for the code and the values of each row."""

    def of_block(block: slice) -> Integers:
        both = code[block].astype(np.int64)
        for values, lowest, span in columns:
            both *= span
            both += values[block]
            both -= lowest
        return both

    return by_blocks(len(code), np.int64, of_block)


def _numbered(code: Integers, codes: int) -> tuple[Integers, Integers]:
    """Numbers in order of first occurrence, and the row of each first occurrence."""
    rows = len(code)
    if codes > max(rows, _SMALL_TABLE):
        code, distinct = pd.factorize(code)
        codes = len(distinct)
    first = np.full(codes, rows)
    # From the last row to the first one, which so is what stays.
    for end in range(rows, 0, -BLOCK):
        begin = max(end - BLOCK, 0)
        first[code[begin:end][::-1]] = np.arange(end - 1, begin - 1, -1)
    occurs = np.flatnonzero(first < rows)
    order = occurs[np.argsort(first[occurs], kind="stable")]
    place = np.zeros(codes, np.int32)
    place[order] = np.arange(len(order), dtype=np.int32)
    numbers = by_blocks(rows, np.int32, lambda block: place[code[block]])
    return numbers, first[order]


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

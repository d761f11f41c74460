"""Works on millions of rows a block at a time, on every core.

What is computed on the way to a result stays in the processor's cache, and no array of the whole
length is made for it. NumPy lets go of the interpreter while it computes.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from spark_prof.cores import cores

_BLOCK = 1 << 17
_Result = TypeVar("_Result")


def by_blocks(
    rows: int, dtype: npt.DTypeLike, values_of: Callable[[slice], npt.NDArray[Any]]
) -> npt.NDArray[Any]:
    """An array of so many rows, of which `values_of` gives the rows of a slice."""
    found = np.empty(rows, dtype)

    def fill(start: int) -> None:
        block = slice(start, min(start + _BLOCK, rows))
        found[block] = values_of(block)

    starts = range(0, rows, _BLOCK)
    if len(starts) < 2:
        for start in starts:
            fill(start)
        return found
    with ThreadPoolExecutor(cores()) as pool:
        list(pool.map(fill, starts))
    return found


def at_once(*tasks: Callable[[], _Result]) -> list[_Result]:
    """The results of tasks that need nothing of each other, in their order."""
    with ThreadPoolExecutor(cores()) as pool:
        return list(pool.map(lambda task: task(), tasks))

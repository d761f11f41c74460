"""How kernels were launched: name, grid, block and shared memory, looked up once for all alike.

A model has a few hundred different launches and repeats them a million times. The fields that tell
them apart are mixed into one number a record, and only the different numbers are looked at.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from spark_prof.traces.readers.growing import Names

__all__ = ["Launches"]

_FACTOR = np.uint64(0x9E3779B97F4A7C15)  # 2^64 divided by the golden ratio, as hashes often use
_SHAPE = "gridX_to_dynamicSharedMemory"
_WORDS = 4


class Launches:
    """The different launches seen so far.

    Args:
        names: the names of kernels, by their address.

    Attributes:
        grids: the different grids, as ``x,y,z``; number 0 is none.
        blocks: likewise.
    """

    def __init__(self, names: Names) -> None:
        self._names = names
        self.grids, self.blocks = Names(str), Names(str)
        self.grids.number("")
        self.blocks.number("")
        self._number: dict[int, int] = {}
        self._columns: dict[str, list[int]] = {
            name: [] for name in ("name", "grid", "block", "shared_bytes")
        }

    def describe(self, rows: Any, into: dict[str, npt.NDArray[Any]]) -> None:
        """Writes name, grid, block and shared_bytes of these kernel records."""
        codes, found = pd.factorize(_mixed(rows))
        keys = found.tolist()
        if not self._number.keys() >= set(keys):
            first = np.empty(len(keys), np.int64)
            first[codes[::-1]] = np.arange(len(codes) - 1, -1, -1)
            for key, row in zip(keys, rows[first], strict=True):
                if key not in self._number:
                    self._add(key, row)
        numbers = [self._number[key] for key in keys]
        for name, values in self._columns.items():
            mine = np.array([values[number] for number in numbers], np.int32)
            mine.take(codes, out=into[name], mode="clip")

    def _add(self, key: int, row: Any) -> None:
        self._number[key] = len(self._number)
        shared = int(row["staticSharedMemory"]) + int(row["dynamicSharedMemory"])
        values = {
            "name": self._names.code(int(row["name"])),
            "grid": self.grids.number(f"{row['gridX']},{row['gridY']},{row['gridZ']}"),
            "block": self.blocks.number(f"{row['blockX']},{row['blockY']},{row['blockZ']}"),
            "shared_bytes": min(shared, np.iinfo(np.int32).max),
        }
        for name, value in values.items():
            self._columns[name].append(value)


def _mixed(rows: Any) -> npt.NDArray[np.uint64]:
    """One number a record out of the fields that tell launches apart.

    With a thousand different launches, two get the same with a probability of 3e-14.
    """
    shape = rows[_SHAPE]
    mixed: npt.NDArray[np.uint64] = rows["name"] * _FACTOR
    part = np.empty_like(mixed)
    for word in range(_WORDS):
        np.right_shift(mixed, np.uint64(29), out=part)
        mixed ^= part
        mixed ^= shape[:, word]
        mixed *= _FACTOR
    return mixed

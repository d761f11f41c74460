"""How kernels were launched: name, grid, block and shared memory, looked up once for all alike.

A model has a few hundred different launches and repeats them a million times. The fields that tell
them apart are mixed into one number a record, and only the different numbers are looked at.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from spark_prof.traces.readers.growing import Names

_FACTOR = np.uint64(0x9E3779B97F4A7C15)  # 2^64 divided by the golden ratio, as hashes often use
_SHAPE = "gridX_to_dynamicSharedMemory"
_WORDS = 4
_MOST_SHARED = (1 << 31) - 1


@dataclass(frozen=True)
class Distinct:
    """What tells some rows apart.

    Attributes:
        codes: for each row which of the keys it has.
        keys: the different keys.
        rows: for each key a record that has it; None where the key says everything.
    """

    codes: npt.NDArray[np.int64]
    keys: list[int]
    rows: Any = None


def distinct(values: npt.NDArray[Any]) -> Distinct:
    """The different values."""
    codes, found = pd.factorize(values)
    return Distinct(codes, found.tolist())


def distinct_launches(rows: Any) -> Distinct:
    """The different launches among kernel records."""
    found = distinct(_mixed(rows))
    first = np.empty(len(found.keys), np.int64)
    first[found.codes[::-1]] = np.arange(len(rows) - 1, -1, -1)
    return replace(found, rows=rows[first])


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
        self._seen: dict[int, tuple[int, int, int, int]] = {}

    def describe(self, found: Distinct, into: Mapping[str, npt.NDArray[Any]]) -> None:
        """Writes name, grid, block and shared_bytes of these launches."""
        for key, row in zip(found.keys, found.rows, strict=True):
            if key not in self._seen:
                self._seen[key] = self._columns(row)
        values = np.array([self._seen[key] for key in found.keys], np.int32).reshape(-1, 4)
        for index, name in enumerate(("name", "grid", "block", "shared_bytes")):
            mine = np.ascontiguousarray(values[:, index])
            mine.take(found.codes, out=into[name], mode="clip")

    def _columns(self, row: Any) -> tuple[int, int, int, int]:
        shared = int(row["staticSharedMemory"]) + int(row["dynamicSharedMemory"])
        return (
            self._names.code(int(row["name"])),
            self.grids.number(f"{row['gridX']},{row['gridY']},{row['gridZ']}"),
            self.blocks.number(f"{row['blockX']},{row['blockY']},{row['blockZ']}"),
            max(min(shared, _MOST_SHARED), -_MOST_SHARED),
        )


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

"""Kernels for the tests of the time line: random ones, and a brute force that looks at each ns."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence

import numpy as np
import pandas as pd

from spark_prof.analyzers.views.columns import KernelColumns, Launch

ORIGIN = 1_800_000_000_000_000_001
"""An odd time in 2027: as a float it would lose its last two digits."""

Row = tuple[int, int, int, int, int, int]
"""Start and end after ORIGIN, stream, component, layer, step."""


def columns(rows: Iterable[Row], streams: int = 3, names: Sequence[str] = ("a",)) -> KernelColumns:
    """These kernels in order of start; the i-th one has the i-th name, over and over."""
    table = np.array(sorted(rows, key=lambda row: row[0]), np.int64).reshape(-1, 6)
    start, end, stream, component, layer, step = table.T
    return KernelColumns(
        start_ns=start + ORIGIN,
        end_ns=end + ORIGIN,
        step=step.astype(np.int32),
        layer=layer.astype(np.int16),
        component=component.astype(np.uint8),
        name=(np.arange(len(table)) % len(names)).astype(np.int32),
        launch=np.zeros(len(table), np.int32),
        stream=stream.astype(np.uint8),
        names=tuple(names),
        copies=(False,) * len(names),
        launches=(Launch("1,1,1", "32,1,1", 16, 0),),
        streams=tuple(f"0/{number + 7}" for number in range(streams)),
    )


def random_rows(seed: int, streams: int = 3, most: int = 60) -> list[Row]:
    """Kernels of all lengths, also of none, that overlap and begin at one time."""
    chosen = random.Random(seed)
    rows = []
    for _ in range(chosen.randrange(most)):
        start = chosen.choice([chosen.randrange(500), 100, 250])
        length = chosen.choice([0, 1, 2, 7, 30, 900])
        layer = chosen.randrange(-1, 4)
        step = start // 100
        rows.append(
            (start, start + length, chosen.randrange(streams), chosen.randrange(17), layer, step)
        )
    return rows


def steps(*windows: tuple[int, int], phase: str = "decode") -> pd.DataFrame:
    """Steps with these begins and ends after ORIGIN, numbered from 0."""
    begin, finish = np.array(windows, np.int64).reshape(-1, 2).T + ORIGIN
    return pd.DataFrame(
        {
            "step": np.arange(len(windows)),
            "phase": [phase] * len(windows),
            "begin_ns": begin,
            "finish_ns": finish,
            "step_us": (finish - begin) / 1e3,
        }
    )


def moments(rows: Iterable[Row], begin: int, end: int) -> dict[int, Row]:
    """For each ns of a range in which something ran, the kernel that had begun first."""
    found: dict[int, Row] = {}
    for row in sorted(rows, key=lambda row: row[0]):
        for moment in range(max(row[0], begin), min(row[1], end)):
            found.setdefault(moment, row)
    return found

"""The time of each cell, a component in a layer, in each step: what the map of layers shows."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from threading import Lock

import numpy as np
import numpy.typing as npt
import pandas as pd

from spark_prof.analyzers.lookup import Positions, positions
from spark_prof.analyzers.views.columns import KernelColumns
from spark_prof.cores import cores
from spark_prof.vocabulary import COMPONENTS

_BLOCK = 1 << 18
_BLOCK_ENTRIES = 1 << 22
"""Of the sums of one block, where each thread makes some."""
_MOST_ENTRIES = 1 << 25
"""Times of cells in steps that are kept, 256 MiB of them; with more, not of every step."""


@dataclass(frozen=True)
class StepCells:
    """The time of each cell in each step. A cell is a component in a layer, or in none.

    Attributes:
        layer: of each cell, ascending, -1 for none.
        component: of each cell, its place in `vocabulary.COMPONENTS`, ascending in a layer.
        total_ns: of each cell in all steps.
        kernels: of each cell in all steps.
        steps: rows of the steps' table that were kept: all, or every n-th of very many.
        ns: a row a cell, a column a kept step.
    """

    layer: npt.NDArray[np.int16]
    component: npt.NDArray[np.uint8]
    total_ns: npt.NDArray[np.int64]
    kernels: npt.NDArray[np.int64]
    steps: npt.NDArray[np.int64]
    ns: npt.NDArray[np.float64]


@dataclass(frozen=True)
class CellTimes:
    """The cells that some steps have, and how long one such step spends in each, in microseconds.

    Attributes:
        steps: how many steps were looked at.
        layer: of each cell, ascending, -1 for none.
        component: of each cell, its name.
        mean_us: over the steps; these add up to the kernel time of a mean step.
        median_us: over the steps.
        p99_us: over the steps.
        spread_us: from the 10th to the 90th percentile over the steps.
    """

    steps: int
    layer: tuple[int, ...]
    component: tuple[str, ...]
    mean_us: npt.NDArray[np.float64]
    median_us: npt.NDArray[np.float64]
    p99_us: npt.NDArray[np.float64]
    spread_us: npt.NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.layer)


def step_cells(kernels: KernelColumns, steps: pd.DataFrame) -> StepCells:
    """Adds up the kernels of each cell in each step; copies are no kernels.

    Args:
        kernels: of a rank.
        steps: its analyzed steps in ascending order, of which `step` is read.
    """
    place = positions(steps["step"].to_numpy(), np.asarray(kernels.step))
    combinations = (int(np.max(kernels.layer, initial=-1)) + 2) * len(COMPONENTS)
    counted = np.zeros(combinations, np.int64)
    total = np.zeros(combinations)
    for block in _blocks(len(kernels)):
        code, took, _ = _cells_of(kernels, place, block)
        counted += np.bincount(code, minlength=combinations)
        total += np.bincount(code, took, minlength=combinations)
    cells = np.flatnonzero(counted)
    every = max(1, -(-len(steps) * len(cells) // _MOST_ENTRIES))
    kept = np.arange(0, len(steps), every)
    return StepCells(
        layer=(cells // len(COMPONENTS) - 1).astype(np.int16),
        component=(cells % len(COMPONENTS)).astype(np.uint8),
        total_ns=total[cells].astype(np.int64),
        kernels=counted[cells],
        steps=kept,
        ns=_by_step(kernels, place, cells, combinations, kept, every),
    )


def of_steps(found: StepCells, chosen: npt.NDArray[np.bool_]) -> npt.NDArray[np.float64]:
    """The times of the chosen ones of the kept steps, a row a cell, in nanoseconds.

    Args:
        found: what `step_cells` returned.
        chosen: of each step of the table, whether it is looked at.
    """
    mask = chosen[found.steps]
    return found.ns if mask.all() else found.ns[:, mask]


def cell_times(found: StepCells, chosen: npt.NDArray[np.bool_]) -> CellTimes:
    """How long the chosen steps spend in each cell; a cell in which none spends any is left out.

    Args:
        found: what `step_cells` returned.
        chosen: of each step of the table, whether it is looked at.
    """
    us = of_steps(found, chosen) / 1e3
    mean = us.mean(axis=1) if us.shape[1] else np.zeros(len(us))
    some = mean > 0
    at = _percentiles(us[some], (10, 50, 90, 99))
    return CellTimes(
        steps=us.shape[1],
        layer=tuple(found.layer[some].tolist()),
        component=tuple(COMPONENTS[place] for place in found.component[some].tolist()),
        mean_us=mean[some],
        median_us=at[1],
        p99_us=at[3],
        spread_us=at[2] - at[0],
    )


def _cells_of(
    kernels: KernelColumns, place: Positions, block: slice
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int64], Positions]:
    """Cell, time and step of the kernels of a block that belong to a step."""
    took = kernels.end_ns[block] - kernels.start_ns[block]
    layer = np.maximum(kernels.layer[block], -1).astype(np.int32)
    code = (layer + 1) * len(COMPONENTS) + kernels.component[block]
    step = place[block]
    counts = (step >= 0) & ~np.asarray(kernels.copies, bool)[kernels.name[block]]
    if counts.all():
        return code, took, step
    return code[counts], took[counts], step[counts]


def _by_step(
    kernels: KernelColumns,
    place: Positions,
    cells: npt.NDArray[np.int64],
    combinations: int,
    kept: npt.NDArray[np.int64],
    every: int,
) -> npt.NDArray[np.float64]:
    """The sums of each cell in each kept step."""
    row = np.zeros(combinations, np.int64)
    row[cells] = np.arange(len(cells))
    sums = np.zeros((len(cells), len(kept)))
    lock = Lock()

    def add(block: slice) -> None:
        code, took, step = _cells_of(kernels, place, block)
        if every > 1:
            whole = step % every == 0
            code, took, step = code[whole], took[whole], step[whole] // every
        if not len(step):
            return
        first, last = int(step.min()), int(step.max())
        width = last - first + 1
        # Kernels come in order of time, so that a block is about few of the steps.
        if width * len(cells) <= _BLOCK_ENTRIES:
            place_of = row[code] * width + (step - first)
            block_sums = np.bincount(place_of, took, len(cells) * width).reshape(-1, width)
            with lock:
                sums[:, first : last + 1] += block_sums
        else:
            with lock:
                np.add.at(sums, (row[code], step), took)

    with ThreadPoolExecutor(cores()) as pool:
        list(pool.map(add, _blocks(len(kernels))))
    return sums


def _percentiles(rows: npt.NDArray[np.float64], at: tuple[int, ...]) -> npt.NDArray[np.float64]:
    """Percentiles of each row."""
    if not rows.size:
        return np.zeros((len(at), len(rows)))
    with ThreadPoolExecutor(cores()) as pool:
        parts = list(pool.map(lambda part: np.percentile(part, at, axis=1),
                              np.array_split(rows, min(len(rows), 8))))  # fmt: skip
    return np.concatenate(parts, axis=1)


def _blocks(rows: int) -> Iterator[slice]:
    return (slice(start, min(start + _BLOCK, rows)) for start in range(0, rows, _BLOCK))

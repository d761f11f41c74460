"""The time of each cell, a component in a layer, in each step: what the map of layers shows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from spark_prof.analyzers.lookup import Integers, at_once, combined, copies_in, positions
from spark_prof.analyzers.shapes.shape_rows import SHAPE_COLUMNS
from spark_prof.arrays import Flags, Floats, Int64s
from spark_prof.vocabulary import COMPONENTS

LAUNCH_COLUMNS = ("device", "stream", *SHAPE_COLUMNS)
"""What `columns_of` needs of that table beside what is placed."""

PLACED_COLUMNS = (
    "name", "kind", "start_ns", "end_ns", "step", "layer", "component", "ahead_ns",
)  # fmt: skip
"""What `columns_of` needs of the placed kernels; the last one where any started early."""

_HIGHEST_LAYER = (1 << 15) - 1


@dataclass(frozen=True)
class KernelColumns:
    """The rows of a rank's `kernels` table from their own starts on; the arrays have one length.

    # bar: 31 bytes a kernel, 1.5 GiB for the explorer at 10 M

    The arrays are not to be written to: all who look share them. Where nothing tells when kernels
    ran (`Prepared.timed`), each instance has its mean duration, and begins where the one before
    it ends: then only `end_ns - start_ns` means something.
    """

    start_ns: Int64s
    end_ns: Int64s
    step: npt.NDArray[np.int32]  # its step, -1 outside of the analyzed ones
    layer: npt.NDArray[np.int16]  # its decoder layer, -1 for none, or for one beyond any model's
    component: npt.NDArray[np.uint8]  # place in `vocabulary.COMPONENTS`
    name: npt.NDArray[np.int32]
    launch: npt.NDArray[np.int32]  # row of `launches`
    names: tuple[str, ...]  # as the trace wrote them; not to be drawn unescaped
    # Of each name, whether it is a copy or a memset, which no sum of kernels contains.
    copies: tuple[bool, ...]
    launches: pd.DataFrame  # LAUNCH_COLUMNS, a row for each combination of them that occurs
    ahead_ns: Int64s | None = None  # how much earlier each was seen to start; None if none was

    def __len__(self) -> int:
        return len(self.start_ns)

    def of_steps(self, steps: Integers) -> tuple[Integers, Integers]:
        """The rows of kernels, no copies, of one of these ascending steps, and of which."""
        place = positions(steps, self.step)
        rows = np.flatnonzero((place >= 0) & ~np.asarray(self.copies, bool)[self.name])
        return rows, place[rows]


def columns_of(
    kernels: pd.DataFrame, steps: Integers, shapes: pd.DataFrame | None = None
) -> KernelColumns:
    """The kernels of a rank as plain columns.

    Args:
        steps: the analyzed steps, ascending.
        shapes: LAUNCH_COLUMNS of the same rows; None where no launch is looked at.
    """
    if shapes is None:
        shapes = pd.DataFrame(0, index=range(len(kernels)), columns=list(LAUNCH_COLUMNS))
    name, names = _used(kernels["name"])
    launch, first = combined(*(shapes[column] for column in LAUNCH_COLUMNS))
    copies = np.zeros(len(names), bool)
    copies[name[copies_in(kernels)]] = True
    layer = kernels["layer"].to_numpy()
    step = kernels["step"].to_numpy(np.int32)
    return KernelColumns(
        start_ns=kernels["start_ns"].to_numpy(np.int64),
        end_ns=kernels["end_ns"].to_numpy(np.int64),
        step=np.where(positions(steps, step) < 0, np.int32(-1), step),
        layer=np.where((layer < 0) | (layer > _HIGHEST_LAYER), -1, layer).astype(np.int16),
        component=kernels["component"].cat.codes.to_numpy().astype(np.uint8),
        name=name,
        launch=launch.astype(np.int32, copy=False),
        names=names,
        copies=tuple(copies.tolist()),
        launches=shapes[list(LAUNCH_COLUMNS)].iloc[first].reset_index(drop=True),
        ahead_ns=kernels["ahead_ns"].to_numpy(np.int64) if "ahead_ns" in kernels else None,
    )


def _used(names: pd.Series) -> tuple[npt.NDArray[np.int32], tuple[str, ...]]:
    """The place of each row's name among those that occur, and which these are."""
    code = names.cat.codes.to_numpy()
    categories = names.cat.categories
    occurs = np.bincount(code, minlength=len(categories)) > 0
    place = (np.cumsum(occurs) - 1).astype(np.int32)
    return place[code], tuple(map(str, categories[occurs]))


def call_times(ns: Int64s, key: Any, at: Sequence[float] = (0.5,)) -> pd.DataFrame:
    """How long the calls of each key took, a row a key that occurs, in order.

    Columns are the quantiles of a call under `at`, `calls`, and `us` of all of them together.
    """
    groups = pd.Series(ns).groupby(key)
    quantiles = groups.quantile(np.array(at)).unstack() / 1e3
    return quantiles.assign(calls=groups.size(), us=groups.sum() / 1e3)


_MOST_ENTRIES = 1 << 25
"""Times of cells in steps that are kept, 256 MiB of them; with more, not of every step."""


@dataclass(frozen=True)
class StepCells:
    """The time of each cell in each step. A cell is a component in a layer, or in none."""

    layer: npt.NDArray[np.int16]  # of each cell, ascending, -1 for none
    # Of each cell, its place in `vocabulary.COMPONENTS`, ascending in a layer.
    component: npt.NDArray[np.uint8]
    # Rows of the steps' table that were kept: all, or every n-th of very many.
    steps: Int64s
    ns: Floats  # a row a cell, a column a kept step


@dataclass(frozen=True)
class CellTimes:
    """The cells of some steps, and how long one such step spends in each, in microseconds."""

    steps: int
    layer: tuple[int, ...]
    component: tuple[str, ...]
    # Over the steps; these add up to the kernel time of a mean step.
    mean_us: Floats
    median_us: Floats
    p99_us: Floats
    spread_us: Floats  # from the 10th to the 90th percentile over the steps

    def __len__(self) -> int:
        return len(self.layer)


def step_cells(kernels: KernelColumns, steps: pd.DataFrame) -> StepCells:
    """Adds up the kernels of each cell in each step; copies are no kernels."""
    rows, step = kernels.of_steps(steps["step"].to_numpy())
    code = (kernels.layer[rows].astype(np.int64) + 1) * len(COMPONENTS) + kernels.component[rows]
    took = kernels.end_ns[rows] - kernels.start_ns[rows]
    cells = np.flatnonzero(np.bincount(code))
    every = max(1, -(-len(steps) * len(cells) // _MOST_ENTRIES))
    sampled = np.arange(0, len(steps), every)
    place = np.zeros(int(code.max(initial=-1)) + 1, np.int64)
    place[cells] = np.arange(len(cells))
    in_sample = step % every == 0
    entry = place[code[in_sample]] * len(sampled) + step[in_sample] // every
    ns = np.bincount(entry, took[in_sample], len(cells) * len(sampled))
    return StepCells(
        layer=(cells // len(COMPONENTS) - 1).astype(np.int16),
        component=(cells % len(COMPONENTS)).astype(np.uint8),
        steps=sampled,
        ns=ns.astype(np.float64, copy=False).reshape(len(cells), len(sampled)),
    )


def of_steps(cells: StepCells, chosen: Flags) -> Floats:
    """The times of the chosen ones of the kept steps, a row a cell, in nanoseconds."""
    mask = chosen[cells.steps]
    return cells.ns if mask.all() else cells.ns[:, mask]


def cell_times(cells: StepCells, chosen: Flags) -> CellTimes:
    """How long the chosen steps spend in each cell; a cell in which none spends any is left out."""
    us = of_steps(cells, chosen) / 1e3
    mean = us.mean(axis=1) if us.shape[1] else np.zeros(len(us))
    some = mean > 0
    at = _percentiles(us[some], (10, 50, 90, 99))
    return CellTimes(
        steps=us.shape[1],
        layer=tuple(cells.layer[some].tolist()),
        component=tuple(COMPONENTS[place] for place in cells.component[some].tolist()),
        mean_us=mean[some],
        median_us=at[1],
        p99_us=at[3],
        spread_us=at[2] - at[0],
    )


def _percentiles(rows: Floats, at: tuple[int, ...]) -> Floats:
    if not rows.size:
        return np.zeros((len(at), len(rows)))
    parts = np.array_split(rows, min(len(rows), 8))
    percentiles = at_once(*(partial(np.percentile, part, at, axis=1) for part in parts))
    return np.concatenate(percentiles, axis=1)


@dataclass(frozen=True)
class CellKernel:
    """One kernel of a cell."""

    name: int
    calls: float  # in a mean step
    us: float  # in a mean step, in microseconds
    share: float
    median_us: float
    p99_us: float


def kernels_of_cell(
    kernels: KernelColumns,
    steps: pd.DataFrame,
    chosen: Flags,
    layer: int,
    component: str,
) -> tuple[CellKernel, ...]:
    """The kernels that the chosen steps run in a cell, what takes the most time first."""
    number = COMPONENTS.index(component)
    rows, _ = kernels.of_steps(steps["step"].to_numpy()[chosen])
    rows = rows[(kernels.layer[rows] == layer) & (kernels.component[rows] == number)]
    if not len(rows):
        return ()
    table = call_times(
        kernels.end_ns[rows] - kernels.start_ns[rows], kernels.name[rows], (0.5, 0.99)
    )
    whole = float(table["us"].sum()) or 1.0
    count = int(chosen.sum())
    cell_kernels = [
        CellKernel(int(name), calls / count, us / count, us / whole, median, p99)
        for name, median, p99, calls, us in table.itertuples(name=None)
    ]
    return tuple(sorted(cell_kernels, key=lambda kernel: (-kernel.us, kernel.name)))

"""The kernels of one cell of the map of layers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from spark_prof.analyzers.lookup import positions
from spark_prof.analyzers.views.columns import KernelColumns
from spark_prof.analyzers.views.grouped import grouped_percentiles
from spark_prof.vocabulary import COMPONENTS


@dataclass(frozen=True)
class CellKernel:
    """One kernel of a cell.

    Attributes:
        name: its place in the kernels' names.
        calls: in a mean step.
        us: in a mean step, in microseconds.
        share: of the cell's time.
        median_us: of a call.
        p99_us: of a call.
    """

    name: int
    calls: float
    us: float
    share: float
    median_us: float
    p99_us: float


def kernels_of_cell(
    kernels: KernelColumns,
    steps: pd.DataFrame,
    chosen: npt.NDArray[np.bool_],
    layer: int,
    component: str,
) -> tuple[CellKernel, ...]:
    """The kernels that the chosen steps run in a cell, what takes the most time first.

    Args:
        kernels: of a rank.
        steps: its analyzed steps in ascending order, of which `step` is read.
        chosen: of each step, whether it is looked at.
        layer: of the cell, -1 for none.
        component: of the cell.
    """
    wanted = COMPONENTS.index(component)
    rows = np.flatnonzero((kernels.layer == layer) & (kernels.component == wanted))
    numbers = steps["step"].to_numpy()[chosen]
    copies = np.asarray(kernels.copies, bool)
    rows = rows[positions(numbers, kernels.step[rows]) >= 0]
    rows = rows[~copies[kernels.name[rows]]]
    if not len(rows):
        return ()
    names, place = np.unique(kernels.name[rows], return_inverse=True)
    took = kernels.end_ns[rows] - kernels.start_ns[rows]
    calls = np.bincount(place)
    ns = np.bincount(place, took)
    median, p99 = grouped_percentiles(place, took, len(names), (50, 99)) / 1e3
    count = len(numbers)
    found = [
        CellKernel(
            int(names[own]), int(calls[own]) / count, float(ns[own]) / 1e3 / count,
            float(ns[own] / ns.sum()) if ns.sum() else 0.0, float(median[own]), float(p99[own]),
        )
        for own in range(len(names))
    ]  # fmt: skip
    return tuple(sorted(found, key=lambda kernel: (-kernel.us, kernel.name)))

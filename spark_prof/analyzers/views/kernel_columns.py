"""The kernels of one rank as plain columns, 31 bytes a kernel, so that a page can look at all."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from spark_prof.analyzers.lookup import Integers, combined, copies_in, positions
from spark_prof.analyzers.shapes.shape_rows import SHAPE_COLUMNS
from spark_prof.arrays import Int64s

LAUNCH_COLUMNS = ("device", "stream", *SHAPE_COLUMNS)
"""What `columns_of` needs of that table beside what is placed."""

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
        launch=launch.astype(np.int32),
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

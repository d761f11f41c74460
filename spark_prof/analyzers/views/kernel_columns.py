"""The kernels of one rank as plain columns, 33 bytes a kernel, so that a page can look at all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from spark_prof.analyzers.lookup import Integers, NameColumn, combined, positions
from spark_prof.vocabulary import COPIES


@dataclass(frozen=True)
class Launch:
    """One shape in which kernels were launched."""

    grid: str  # blocks in x, y and z, as the bundle writes them; empty where unknown
    block: str
    registers: int  # of a thread, 0 where unknown
    shared_bytes: int  # of a block, static and dynamic, 0 where unknown


@dataclass(frozen=True)
class KernelColumns:
    """The rows of a rank's `kernels` table in order of start; the arrays have one length.

    The arrays are not to be written to: all who look share them. Where nothing tells when kernels
    ran (`Prepared.timed`), each instance has its mean duration, and begins where the one before
    it ends: then only `end_ns - start_ns` means something.
    """

    start_ns: npt.NDArray[np.int64]
    end_ns: npt.NDArray[np.int64]
    step: npt.NDArray[np.int32]  # its step, -1 outside of the analyzed ones
    layer: npt.NDArray[np.int16]  # its decoder layer, -1 for none, or for one beyond any model's
    component: npt.NDArray[np.uint8]  # place in `vocabulary.COMPONENTS`
    name: npt.NDArray[np.int32]
    launch: npt.NDArray[np.int32]
    # Place in `streams`; of very many the last one stands for all that are left.
    stream: npt.NDArray[np.uint16]
    names: tuple[str, ...]  # as the trace wrote them; not to be drawn unescaped
    # Of each name, whether it is a copy or a memset, which no sum of kernels contains.
    copies: tuple[bool, ...]
    launches: tuple[Launch, ...]
    streams: tuple[str, ...]  # device and stream of each lane, such as "0/7"

    def __len__(self) -> int:
        return len(self.start_ns)

    def of_steps(self, steps: Integers) -> tuple[Integers, Integers]:
        """The rows of kernels, no copies, that belong to one of these steps, and which.

        Args:
            steps: numbers of steps, ascending.
        """
        place = positions(steps, self.step)
        rows = np.flatnonzero((place >= 0) & ~np.asarray(self.copies, bool)[self.name])
        return rows, place[rows]


SHAPE_COLUMNS = ("device", "stream", "grid", "block", "registers", "shared_bytes")
"""Columns of the `kernels` table that `columns_of` needs beside what is placed."""

_MOST_LAUNCHES = 1 << 18
_MOST_STREAMS = 1 << 16
_HIGHEST_LAYER = (1 << 15) - 1
_UNKNOWN_LAUNCH = Launch("", "", 0, 0)
_OTHER_STREAMS = "others"


def columns_of(
    kernels: pd.DataFrame, steps: Integers, shapes: pd.DataFrame | None = None
) -> KernelColumns:
    """The kernels of a rank as plain columns.

    Args:
        steps: the analyzed steps, ascending.
        shapes: SHAPE_COLUMNS of the same rows in the same order; None where no launch is looked at.
    """
    if shapes is None:
        shapes = pd.DataFrame(0, index=range(len(kernels)), columns=list(SHAPE_COLUMNS))
    name, names = _used(kernels["name"])
    launch, kinds = _combinations(shapes, SHAPE_COLUMNS[2:], _MOST_LAUNCHES)
    stream, lanes = _combinations(shapes, SHAPE_COLUMNS[:2], _MOST_STREAMS)
    in_order = np.lexsort((lanes["stream"], lanes["device"]))
    place = np.empty(len(lanes) + 1, np.int64)
    place[in_order] = np.arange(len(lanes))
    place[len(lanes)] = len(lanes)
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
        stream=place[stream].astype(np.uint16),
        names=names,
        copies=_are_copies(kernels, name, len(names)),
        launches=(
            *(
                Launch(str(grid), str(block), int(registers), int(shared))
                for grid, block, registers, shared in kinds.itertuples(index=False)
            ),
            *([_UNKNOWN_LAUNCH] if len(kinds) == _MOST_LAUNCHES - 1 else []),
        ),
        streams=(
            *(f"{d}/{s}" for d, s in lanes.iloc[in_order].itertuples(index=False)),
            *([_OTHER_STREAMS] if len(lanes) == _MOST_STREAMS - 1 else []),
        ),
    )


def _used(names: pd.Series) -> tuple[npt.NDArray[np.int32], tuple[str, ...]]:
    """The place of each row's name among those that occur, and which these are."""
    code = names.cat.codes.to_numpy()
    known = names.cat.categories
    occurs = np.bincount(code, minlength=len(known)) > 0
    if occurs.all():
        return np.asarray(code, np.int32), tuple(map(str, known))
    place = (np.cumsum(occurs) - 1).astype(np.int32)
    return place[code], tuple(map(str, known[occurs]))


def _are_copies(kernels: pd.DataFrame, name: Integers, count: int) -> tuple[bool, ...]:
    """Of each name whether its rows are copies or memsets."""
    found = np.zeros(count, bool)
    found[name[NameColumn(kernels["kind"]).flags(lambda kind: kind in COPIES)]] = True
    return tuple(found.tolist())


def _combinations(
    frame: pd.DataFrame, columns: Sequence[str], most: int
) -> tuple[Integers, pd.DataFrame]:
    """The number of each row's combination of values, and the combinations in order of number.

    Of more than `most` all that come later share the last number, and have no row.
    """
    code, first = combined(*(frame[column] for column in columns))
    if len(first) >= most:
        code = np.minimum(code, most - 1)
        first = first[: most - 1]
    return code, frame[list(columns)].iloc[first]

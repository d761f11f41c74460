"""How the kernels of decode steps were launched, as plain data.

Times are microseconds, shares are fractions of 1.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Tile:
    """The part of a product that one block computes at a time, as the kernel's name has it.

    Attributes:
        family: whose names are written so.
        first: its size in the direction that the name says first.
        second: in the direction that it says second.
        depth: of each step along the inner dimension; None where the name does not tell.
        token_rows: which of both holds the tokens; None where the name does not tell.
    """

    family: str
    first: int
    second: int
    depth: int | None
    token_rows: int | None


@dataclass(frozen=True)
class Occupancy:
    """How many blocks of a kernel one multiprocessor can hold, by its registers and memory.

    Attributes:
        blocks: resident blocks.
        warps: their warps.
        share: of the warps that the multiprocessor could hold.
        limiters: what does not allow one more block: registers, shared memory, threads or blocks;
            several where they agree.
    """

    blocks: int
    warps: int
    share: float
    limiters: tuple[str, ...]


@dataclass(frozen=True)
class ShapeRow:
    """All launches of one shape of one kernel in decode steps.

    Attributes:
        name: the kernel.
        component: what it works for.
        grid: blocks as `x,y,z`.
        block: threads of a block as `x,y,z`.
        registers: of a thread, 0 where unknown.
        shared_bytes: static and dynamic shared memory of a block, without what the driver takes.
        calls: launches in decode steps.
        us: their time.
        share: of the time of all kernels in decode steps.
        blocks: of the grid.
        waves: blocks over what all multiprocessors hold at a time; None where that is unknown.
        busy: share of the places that the waves have which a block takes; of less than one wave
            the share of the multiprocessors that have a block. None where that is unknown.
        occupancy: None where the GPU or the launch is unknown.
        achieved: warps that were active over those that the GPU can hold, from the counters.
        tile: None where the name does not tell.
        tokens: mean number of tokens of the steps that launched it.
        rows_used: rows of a tile that hold a token; None where that is unknown.
        expected: whether `rows_used` takes all experts to be equally likely.
    """

    name: str
    component: str
    grid: str
    block: str
    registers: int
    shared_bytes: int
    calls: float
    us: float
    share: float
    blocks: int
    waves: float | None
    busy: float | None
    occupancy: Occupancy | None
    achieved: float | None
    tile: Tile | None
    tokens: float
    rows_used: float | None
    expected: bool = False

    @property
    def us_per_call(self) -> float:
        """Time of one launch."""
        return self.us / self.calls if self.calls else 0.0

    @property
    def tile_waste(self) -> float | None:
        """Share of a tile's rows that hold no token; None where that is unknown."""
        if self.rows_used is None or self.tile is None or not self.tile.token_rows:
            return None
        return max(0.0, 1 - self.rows_used / self.tile.token_rows)


@dataclass(frozen=True)
class Shapes:
    """The launches of a rank's decode steps, the most expensive first.

    Attributes:
        steps: the decode steps.
        multiprocessors: of the GPU, None where unknown.
        rows: one a kernel, component and shape.
        notes: what could not be said, and why.
    """

    steps: int
    multiprocessors: int | None
    rows: tuple[ShapeRow, ...] = ()
    notes: tuple[str, ...] = ()

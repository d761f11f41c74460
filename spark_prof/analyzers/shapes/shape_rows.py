"""How the kernels of decode steps were launched, as plain data.

Times are microseconds, shares are fractions of 1.
"""

from __future__ import annotations

from dataclasses import dataclass

SHAPE_COLUMNS = ("grid", "block", "registers", "shared_bytes")
"""Columns of the `kernels` table that say in which shape a kernel was launched."""


@dataclass(frozen=True)
class Tile:
    """The part of a product that one block computes at a time, as the kernel's name has it."""

    family: str  # whose names are written so
    first: int  # its size in the direction that the name says first
    second: int  # in the direction that it says second
    depth: int | None  # of each step along the inner dimension; None where the name does not tell
    token_rows: int | None  # which of both holds the tokens; None where the name does not tell


@dataclass(frozen=True)
class Occupancy:
    """How many blocks of a kernel one multiprocessor can hold, by its registers and memory."""

    blocks: int  # resident blocks
    warps: int  # their warps
    share: float  # of the warps that the multiprocessor could hold
    # What allows no further block: registers, shared memory, threads or blocks, or several of them.
    limiters: tuple[str, ...]


@dataclass(frozen=True)
class ShapeRow:
    """All launches of one shape of one kernel in decode steps."""

    name: str  # the kernel
    component: str  # what it works for
    grid: str  # blocks as `x,y,z`
    block: str  # threads of a block as `x,y,z`
    registers: int  # of a thread, 0 where unknown
    shared_bytes: int  # static and dynamic shared memory of a block, without what the driver takes
    calls: float  # launches in decode steps
    us: float  # their time
    share: float  # of the time of all kernels in decode steps
    blocks: int  # of the grid
    waves: float | None  # blocks over what all multiprocessors hold at a time
    # Share of the places that the waves have which a block takes; of less than one wave the share
    # of the multiprocessors that have a block.
    busy: float | None
    occupancy: Occupancy | None  # None where the GPU or the launch is unknown
    achieved: float | None  # active warps over those that the GPU can hold, from the counters
    tile: Tile | None  # None where the name does not tell
    tokens: float  # mean number of tokens of the steps that launched it
    rows_used: float | None  # rows of a tile that hold a token; None where that is unknown
    expected: bool = False  # whether `rows_used` takes all experts to be equally likely

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
    """The launches of a rank's decode steps, the most expensive first."""

    steps: int  # the decode steps
    multiprocessors: int | None  # of the GPU, None where unknown
    rows: tuple[ShapeRow, ...] = ()  # one a kernel, component and shape
    notes: tuple[str, ...] = ()  # what could not be said, and why

"""Moves the times of tables from one clock to another."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pyarrow as pa

_UNSET = 0
"""A time that never came, such as an update of the scheduler; it stays."""


@dataclass(frozen=True)
class Shift:
    """A clock against the reference clock, in ns: positive where it is ahead.

    Attributes:
        reference_rank: whose clock is the reference.
        offset_ns: the offset at `at_ns`, a time by the moved clock.
        drift: by how much it grows, in ns per ns.
        uncertainty_ns: the true offset is no further away.
        basis: what it stands on: collectives or scheduler.
        events: how many of them.
        applied: whether the times were moved; an offset below its uncertainty moves nothing.
    """

    reference_rank: int
    offset_ns: float
    drift: float
    at_ns: int
    uncertainty_ns: float
    basis: str
    events: int
    applied: bool

    def to_json(self) -> dict[str, Any]:
        """The fields as meta.json keeps them."""
        return asdict(self)


def moved(rows: pa.Table, table: str, shift: Shift) -> pa.Table:
    """The rows by the reference clock: every column of nanoseconds, which end in `_ns`.

    Args:
        rows: rows of that table.
        table: its name, for errors.
        shift: the offset of the clock that wrote them.

    Raises:
        ValueError: a time column holds no int64.
    """
    for index, field in enumerate(rows.schema):
        if not field.name.endswith("_ns"):
            continue
        if field.type != pa.int64():
            raise ValueError(f"{table}.{field.name} is {field.type}")
        time = rows.column(index).to_numpy()
        # As whole ns and the small drifted rest: a float of the time itself would lose digits.
        whole = int(shift.offset_ns)
        rest = shift.offset_ns - whole + shift.drift * (time - shift.at_ns).astype(np.float64)
        there = time - whole - np.rint(rest).astype(np.int64)
        column = pa.array(np.where(time == _UNSET, _UNSET, there), pa.int64())
        rows = rows.set_column(index, field, column)
    return rows

"""What the device waits for the host, where recording makes that another time.

Whoever records a step slows the host down more than the device. Where the device waits for the
host, the recorded waits say little about a step that is not recorded: then the waits are what is
left of the measured step beside the device's own time, and nothing is left to check that against.
Where the host was seen to be ahead while nothing was recorded, there are no such waits.
"""

from __future__ import annotations

import pandas as pd

from spark_prof.analyzers.swap_gain.model import FOR_THE_HOST, Untraced
from spark_prof.analyzers.swap_gain.side import Side
from spark_prof.analyzers.swap_gain.tracing import without_tracing

_SHARE = 0.02
"""From this share of a recorded step on the waits matter."""


def is_host_bound(sides: tuple[Side, Side]) -> bool:
    """Whether the device of either side waits for the host while it is recorded."""
    return any(side.waits_us > _SHARE * side.traced_us for side in sides)


def with_measured_waits(
    table: pd.DataFrame, sides: tuple[Side, Side], untraced: Untraced, cost: float
) -> pd.DataFrame:
    """A table of `tables.beside` in which the waits fill the measured step; never below 0.

    Args:
        table: with a column `component`.
        sides: a and b.
        untraced: times of a step without recording.
        cost: what tracing adds to a gap, in ns.
    """
    found = table.copy()
    rows = found["component"] == FOR_THE_HOST
    for name, side, measured in (("a", sides[0], untraced.a_us), ("b", sides[1], untraced.b_us)):
        waits = max(0.0, measured - _device_us(side, cost))
        found.loc[rows, [f"{name}_us", f"gap_{name}_us"]] = waits
    found.loc[rows, "saved_us"] = found["a_us"] - found["b_us"]
    return found


def without_waits(table: pd.DataFrame) -> pd.DataFrame:
    """The table where the host was ahead: the device waited because it was recorded."""
    found = table.copy()
    rows = found["component"] == FOR_THE_HOST
    found.loc[rows, ["a_us", "gap_a_us", "b_us", "gap_b_us", "saved_us", "noise_us"]] = 0.0
    return found


def _device_us(side: Side, cost: float) -> float:
    """The device's own time of a step."""
    rows = side.middle_rows[side.middle_rows["component"] != FOR_THE_HOST]
    gaps = without_tracing(rows["gap_ns"].to_numpy(), cost)
    return float(rows["busy_ns"].sum() + gaps.sum()) / (1e3 * len(side.middle.steps))

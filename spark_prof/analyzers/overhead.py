"""What watching cost, measured in the recording itself.

In a recording with stretches (`--duty-cycle`, `--steady`) watched steps take turns with steps that
are only timed. Each watched stretch is compared with the timed ones right before and after it, of
the same batch size, so that growing contexts and drifting clocks cancel.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from spark_prof.analyzers.token_time import SETTLING
from spark_prof.traces.bundle import Bundle

_FEWEST = 3  # intervals that a stretch must have to be counted


@dataclass(frozen=True)
class Overhead:
    """What watching cost at one batch size, by turns of watched and merely timed steps."""

    batch_size: int  # requests that decode
    ratio: float  # time of a watched step over that of a timed one, median over the stretches
    lowest: float  # the smallest ratio of a stretch
    highest: float
    stretches: int  # watched stretches that lie between two timed ones
    watched_us: float  # median time of a watched step
    timed_us: float
    # The mean step of the whole run, switches and writing included, over the mean timed one.
    run_ratio: float


def overhead_of(bundle: Bundle, rank: int) -> tuple[Overhead, ...]:
    """The overhead for each batch size that has watched stretches between timed ones.

    The time of a step is that from its begin to the next one's, as the worker saw them.
    """
    columns = ["step", "phase", "start_ns", "decode_requests", "watched", "paused_ns"]
    return overhead_of_steps(bundle.frame("steps", rank, columns))


def overhead_of_steps(steps: pd.DataFrame) -> tuple[Overhead, ...]:
    """The overhead, as `overhead_of`, from the rows of a `steps` table."""
    steps = steps.sort_values("step")
    if steps["watched"].all() or not len(steps):
        return ()
    steps = steps[steps["phase"] == "decode"]
    follows = (steps["step"].diff() == 1) & (steps["decode_requests"].diff() == 0)
    run = (~follows).cumsum()
    stretch = (~follows | steps["watched"].ne(steps["watched"].shift())).cumsum()
    # Writing a piece is no part of a step; the whole run has it.
    apart = -steps["start_ns"].diff(-1)
    took = apart - steps["paused_ns"].shift(-1)
    steps = steps.assign(run=run, stretch=stretch, took=took, apart=apart)
    # The last step of a run has no next one, and the last of a stretch contains the switch.
    steps = steps[steps["run"].eq(steps["run"].shift(-1))]
    sizes = sorted(steps["decode_requests"].unique().tolist())
    overheads = (_of_size(size, steps[steps["decode_requests"] == size]) for size in sizes)
    return tuple(overhead for overhead in overheads if overhead is not None)


def _of_size(size: int, steps: pd.DataFrame) -> Overhead | None:
    inner = steps[steps["stretch"].eq(steps["stretch"].shift(-1))]
    inner = inner[inner.groupby("stretch").cumcount() >= SETTLING]
    table = inner.groupby("stretch").agg(
        took=("took", "median"), count=("took", "size"), run=("run", "first"),
        watched=("watched", "first"),
    )  # fmt: skip
    table = table[table["count"] >= _FEWEST]
    before, after = table.shift(1), table.shift(-1)
    watched = table["watched"].astype(bool)
    paired = watched & ~watched.shift(1, fill_value=True) & ~watched.shift(-1, fill_value=True)
    paired &= (before["run"] == table["run"]) & (after["run"] == table["run"])
    if not paired.any():
        return None
    beside = (before["took"] + after["took"])[paired] / 2
    ratios = (table["took"][paired] / beside).to_numpy(np.float64)
    timed = float(table["took"][~watched].median())
    settled = inner[~inner["watched"].astype(bool)]["took"]
    return Overhead(
        batch_size=size,
        ratio=float(np.median(ratios)),
        lowest=float(ratios.min()),
        highest=float(ratios.max()),
        stretches=len(ratios),
        watched_us=float(table["took"][watched].median()) / 1e3,
        timed_us=timed / 1e3,
        run_ratio=float(steps["apart"].mean()) / float(settled.mean()),
    )

"""Ranges of a time line: the whole recording, a step, closer, further, beside. Times are ns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import pandas as pd

from spark_prof.analyzers.views.columns import KernelColumns

SHORTEST_NS = 100
"""No range is shorter: a kernel of 1 us fills a screen then."""


@dataclass(frozen=True)
class Range:
    """From an instant until another, which is later."""

    from_ns: int
    to_ns: int

    @property
    def length_ns(self) -> int:
        """How long it is."""
        return self.to_ns - self.from_ns

    def zoomed(self, factor: int, *, closer: bool) -> Range:
        """So many times as short, or as long, around the same middle."""
        length = self.length_ns // factor if closer else self.length_ns * factor
        return self.around(self.from_ns + self.length_ns // 2, length)

    def moved(self, *, later: bool) -> Range:
        """Half of its length later or earlier."""
        by = self.length_ns // 2 if later else -(self.length_ns // 2)
        return Range(self.from_ns + by, self.to_ns + by)

    def around(self, middle_ns: int, length_ns: int) -> Range:
        """A range of another length around an instant."""
        length_ns = max(length_ns, SHORTEST_NS)
        begin = middle_ns - length_ns // 2
        return Range(begin, begin + length_ns)

    def within(self, outer: Range) -> Range:
        """Moved into another range, and cut where it is longer."""
        length = min(max(self.length_ns, SHORTEST_NS), outer.length_ns)
        begin = min(max(self.from_ns, outer.from_ns), outer.to_ns - length)
        return Range(begin, begin + length)


def recorded(columns: KernelColumns, steps: pd.DataFrame) -> Range:
    """From the first kernel or step to the end of the last one."""
    begins, ends = steps["begin_ns"].to_numpy(np.int64), steps["finish_ns"].to_numpy(np.int64)
    first = min(int(columns.start_ns[:1].min(initial=2**62)), int(begins.min(initial=2**62)))
    last = max(int(columns.end_ns.max(initial=-(2**62))), int(ends.max(initial=-(2**62))))
    if last < first:
        return Range(0, SHORTEST_NS)
    return Range(first, max(last, first + SHORTEST_NS))


def step_range(steps: pd.DataFrame, number: int) -> Range | None:
    """The window of a step, None where there is none of this number."""
    own = steps[(steps["step"] == number).to_numpy()]
    if own.empty:
        return None
    begin, finish = int(own["begin_ns"].iloc[0]), int(own["finish_ns"].iloc[0])
    return Range(begin, max(finish, begin + SHORTEST_NS))


def steps_in(steps: pd.DataFrame, shown: Range) -> pd.DataFrame:
    """The steps whose windows a range touches, in order."""
    inside = (steps["begin_ns"] < shown.to_ns) & (steps["finish_ns"] > shown.from_ns)
    return steps[inside.to_numpy()]


def neighbour_step(steps: pd.DataFrame, shown: Range, *, later: bool) -> int | None:
    """The number of the step after, or before, the one in the middle of a range."""
    middle = shown.from_ns + shown.length_ns // 2
    begins = steps["begin_ns"].to_numpy(np.int64)
    here = int(np.searchsorted(begins, middle, side="right")) - 1
    place = here + (1 if later else -1)
    return int(steps["step"].iloc[place]) if 0 <= place < len(steps) else None


def typical(steps: pd.DataFrame, which: Literal["median", "slowest"]) -> int | None:
    """The number of a step among those that decode, of any where none does."""
    own = steps[(steps["phase"].astype(str) == "decode").to_numpy()]
    own = own if len(own) else steps
    if own.empty:
        return None
    order = own["step_us"].to_numpy().argsort(kind="stable")
    place = order[len(order) // 2] if which == "median" else order[-1]
    return int(own["step"].iloc[place])

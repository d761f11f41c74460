"""The time of kernels in steps: every instant is attributed to one kernel, so overlap counts once.

In the order in which kernels start, each is charged what it adds to the time in which anything
runs. One that starts early and waits for the one before it (programmatic dependent launch) is
charged from that one's end on, and one that runs beside a longer one on another stream nothing.
Kernels and gaps so add up to the length of a step.

A typical step is the mean over those of middle length. A hiccup of the host is among the longest
steps and swings nothing, and parts of a step still add up to it, which medians of parts do not.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import pandas as pd

from spark_prof.analyzers.attribution.order import CODES
from spark_prof.analyzers.classify.classifier import spelling
from spark_prof.analyzers.step_time import middle_half
from spark_prof.analyzers.views.kernel_columns import KernelColumns
from spark_prof.arrays import Floats, Int64s
from spark_prof.rules.kernel_names import NAME_LIMIT

_CHANGING = (
    # Inductor numbers the kernels of a graph, and those of C++ and CUTLASS templates.
    re.compile(r"^(triton_(?:poi|red|per|for|spl|tem|unk)_fused\w*?)_\d+$"),
    re.compile(r"^((?:cpp|cuda|cutlass)_fused\w*?)_\d+$"),
    # Triton before 3.0 wrote how its arguments are specialized.
    re.compile(r"^(\w+?)_(?:\d{1,2}(?:de|d|c)){3,64}\d{0,2}$"),
    # A hash of what was compiled.
    re.compile(r"^(\w+?)_(?=[0-9a-f]*\d)(?=[0-9a-f]*[a-f])[0-9a-f]{8,64}$"),
)
"""What in names differs from compilation to compilation, behind what is kept of them."""
_ANOTHER = re.compile(r"\bmarlin_moe\w*::")
"""A namespace whose kernels are others than those of the same name outside of it."""


@lru_cache(maxsize=16384)
def stable_name(name: str) -> str:
    """The name as it would also be after another compilation, in `spelling`'s spelling."""
    name = name[:NAME_LIMIT]
    found = next(filter(None, (pattern.match(name) for pattern in _CHANGING)), None)
    apart = _ANOTHER.search(name.partition("<")[0])
    stable = spelling(found[1] if found else name).removesuffix("<>")
    return f"{apart[0]}{stable}" if apart else stable


def attributed(start: Int64s, end: Int64s) -> tuple[Int64s, Int64s]:
    """Of each kernel's run the time since all before had ended, and how long nothing ran before it.

    Both together, in ns, are the time from the first start to the last end. Starts ascend.
    """
    end = np.maximum(end, start)
    reached = np.append(start[:1], np.maximum.accumulate(end)[:-1])
    return np.maximum(end - np.maximum(start, reached), 0), np.maximum(start - reached, 0)


@dataclass(frozen=True, eq=False)
class KernelTime:
    """Kernels of some steps, and how long these steps were."""

    step: Int64s  # of each kernel the place among the steps
    us: Floats  # what is attributed to it
    gap_us: Floats  # how long nothing ran before it within its step
    component: Int64s  # place in `vocabulary.COMPONENTS`; a copy's is memcpy
    layer: Int64s  # -1 for none
    name: Int64s  # place among the stable names
    length_us: Floats  # of each step

    @property
    def steps(self) -> int:
        """How many steps there are."""
        return len(self.length_us)

    def table(self, code: Int64s, rows: int, values: Floats | None = None) -> Floats:
        """Sums by step of values, else of times: one row each code, one column each step."""
        values = self.us if values is None else values
        return sums_by_step(code, self.step, values, rows, self.steps)

    def calls(self, code: Int64s, rows: int) -> Floats:
        """How far the calls of each row move together: the root of the sum of squares by name."""
        names = int(self.name.max(initial=0)) + 1
        pair, count = np.unique(code * names + self.name, return_counts=True)
        a_step = count / max(self.steps, 1)
        return np.sqrt(np.bincount(pair // names, weights=a_step**2, minlength=rows))


def sums_by_step(code: Int64s, step: Int64s, values: Floats, rows: int, steps: int) -> Floats:
    """One row each code, one column each step."""
    sums = np.bincount(code * steps + step, weights=values, minlength=rows * steps)
    return sums.astype(np.float64).reshape(rows, steps)


def kernel_time(
    columns: KernelColumns, steps: pd.DataFrame, names: Int64s, chosen: Int64s
) -> KernelTime:
    """What the kernels of a rank did in some of its steps.

    Args:
        names: of each of the kernels' names the place of its stable name.
        chosen: places of the steps, ascending.
    """
    begin, finish = (steps[name].to_numpy(np.int64) for name in ("begin_ns", "finish_ns"))
    # Where two windows overlap, the later one has the time.
    finish = np.append(np.minimum(finish[:-1], begin[1:]), finish[-1:])
    first = np.searchsorted(columns.start_ns, begin[chosen])
    count = np.maximum(np.searchsorted(columns.start_ns, finish[chosen]) - first, 0)
    step = np.repeat(np.arange(len(chosen)), count)
    rows = np.arange(len(step)) + np.repeat(first - np.cumsum(count) + count, count)
    busy, gap = attributed(columns.start_ns[rows], columns.end_ns[rows])
    follows = np.append(False, step[1:] == step[:-1])[: len(step)]
    name = columns.name[rows]
    component = columns.component[rows].astype(np.int64)
    component[np.array(columns.copies, bool)[name]] = CODES["memcpy"]
    return KernelTime(
        step=step,
        us=busy / 1e3,
        gap_us=np.where(follows, gap, 0) / 1e3,
        component=component,
        layer=columns.layer[rows].astype(np.int64),
        name=names[name],
        length_us=steps["step_us"].to_numpy(np.float64)[chosen],
    )


_RESAMPLES = 200
_SEED = 7


@dataclass(frozen=True, eq=False)
class TypicalStep:
    """Which steps count."""

    steps: Int64s  # the middle half of all steps by length
    # Weights of all steps, a column each time that as many were drawn again, and their middle half
    # taken.
    resampled: Floats

    def mean(self, values: Floats) -> Floats:
        """The mean of each row, which holds a value each step."""
        return np.asarray(values[:, self.steps].mean(axis=1), np.float64)

    def error(self, values: Floats) -> Floats:
        """The standard error of each row's mean, by the bootstrap."""
        return np.asarray((values @ self.resampled).std(axis=1), np.float64)


def typical_step(length: Floats, stretch: int = 1) -> TypicalStep:
    """The middle half of steps of these lengths; of fewer than four all."""
    count = len(length)
    starts = np.random.default_rng(_SEED).integers(0, count, (_RESAMPLES, -(-count // stretch)))
    places = (starts[:, :, None] + np.arange(stretch)) % count
    draws = places.reshape(_RESAMPLES, -1)[:, :count]
    resampled = np.zeros((count, _RESAMPLES))
    for column, draw in enumerate(draws):
        chosen = draw[middle_half(length[draw])]
        resampled[:, column] = np.bincount(chosen, minlength=count) / len(chosen)
    return TypicalStep(np.sort(middle_half(length)), resampled)

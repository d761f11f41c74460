"""The time of kernels in steps, by the rule of `analyzers.instants`: what a report has of them.

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
from spark_prof.analyzers.comparing.noise import drawn_again
from spark_prof.analyzers.instants import RunWork, attribute
from spark_prof.analyzers.lookup import combined
from spark_prof.analyzers.step_time import edges_of, middle_half
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
    match = next(filter(None, (pattern.match(name) for pattern in _CHANGING)), None)
    apart = _ANOTHER.search(name.partition("<")[0])
    stable = spelling(match[1] if match else name).removesuffix("<>")
    return f"{apart[0]}{stable}" if apart else stable


@dataclass(frozen=True, eq=False)
class KernelTime:
    """Kernels of some steps, and how long these steps were."""

    # A row each kernel of a component in a layer, or copy; a column each step.
    us: Floats  # what is attributed to it
    call_counts: Floats  # how many of its calls began
    component: Int64s  # of each row the place in `vocabulary.COMPONENTS`; a copy's is memcpy
    layer: Int64s  # -1 for none
    name: Int64s  # place among the stable names
    gaps_us: Floats  # a row each of GAPS
    length_us: Floats  # of each step

    def table(self, code: Int64s, rows: int, values: Floats | None = None) -> Floats:
        """Sums by step of values, else of times: one row each code of the rows."""
        sums = np.zeros((rows, len(self.length_us)))
        np.add.at(sums, code, self.us if values is None else values)
        return sums

    def calls(self, code: Int64s, rows: int) -> Floats:
        """How far the calls of each row move together: the root of the sum of squares by name."""
        names = int(self.name.max(initial=0)) + 1
        pair, place = np.unique(code * names + self.name, return_inverse=True)
        a_step = np.bincount(place, self.call_counts.mean(axis=1), len(pair))
        return np.sqrt(np.bincount(pair // names, weights=a_step**2, minlength=rows))


def kernel_time(
    columns: KernelColumns, steps: pd.DataFrame, names: Int64s, chosen: Int64s
) -> KernelTime:
    """What the kernels of a rank did in some of its steps.

    Args:
        names: of each of the kernels' names the place of its stable name.
        chosen: places of the steps, ascending.
    """
    begin, finish = edges_of(steps.iloc[chosen])
    start, end = columns.start_ns, np.maximum(columns.end_ns, columns.start_ns)
    opens, closes = np.searchsorted(start, begin), np.searchsorted(start, finish)
    # What began before a window may reach into it.
    first = np.minimum(np.searchsorted(np.maximum.accumulate(end), begin, side="right"), opens)
    edges = np.zeros(len(start) + 1, np.int64)
    np.add.at(edges, first, 1)
    np.add.at(edges, closes, -1)
    rows = np.flatnonzero(np.cumsum(edges))
    copies = np.array(columns.copies, bool)[columns.name[rows]]
    component = np.where(copies, CODES["memcpy"], columns.component[rows].astype(np.int64))
    layer, name = columns.layer[rows].astype(np.int64), names[columns.name[rows]]
    code, examples = combined(component, layer, name)
    attribution = attribute(
        RunWork(start[rows], end[rows], code, ~copies), begin, finish, len(examples)
    )
    step = np.searchsorted(begin, start[rows], side="right") - 1
    inside = (step >= 0) & (start[rows] < finish[step])
    call_counts = np.zeros((len(examples), len(chosen)))
    np.add.at(call_counts, (code[inside], step[inside]), 1.0)
    return KernelTime(
        us=attribution.attributed.T / 1e3,
        call_counts=call_counts,
        component=component[examples],
        layer=layer[examples],
        name=name[examples],
        gaps_us=np.stack([attribution.between, attribution.outside]) / 1e3,
        length_us=(finish - begin) / 1e3,
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
    resampled = np.zeros((count, _RESAMPLES))
    for column, draw in enumerate(drawn_again(count, stretch, _RESAMPLES, _SEED)):
        chosen = draw[middle_half(length[draw])]
        resampled[:, column] = np.bincount(chosen, minlength=count) / len(chosen)
    return TypicalStep(np.sort(middle_half(length)), resampled)

"""The decode steps of a side whose kernels were swapped, and what is attributed to each kernel.

A step begins where the one before it ends on the device and lasts until its own last kernel ends,
so that steps after one another add up to the time that they took together.

A profiler that notes the begin and the end of each kernel holds up the next one. Kernels that start
before the one before them has ended have no such gap, and nothing is taken off them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd

from spark_prof.analyzers.attribution.placement import place_kernels
from spark_prof.analyzers.comparing.kernel_time import TypicalStep, typical_step
from spark_prof.analyzers.comparing.swap_attribution import FOR_THE_HOST
from spark_prof.analyzers.lookup import positions
from spark_prof.arrays import Flags, Floats, Int64s
from spark_prof.errors import CommandError
from spark_prof.traces.bundle import Bundle
from spark_prof.vocabulary import COMPONENTS

KINDS = (*COMPONENTS, FOR_THE_HOST)
"""What the time of a step goes to, in the order in which a decoder runs it."""

_LAUNCH_NS = 5000  # a longer gap before what the host launches by itself is a wait for the host

_MOST_STEPS = 1000  # more say nothing more, and each has a thousand kernels


@dataclass(frozen=True, eq=False)
class SwappedSteps:
    """The first thousand steps that decode so many requests and follow one that does, too."""

    rows: pd.DataFrame
    """A row each kernel or copy, and one each wait, whose component is `FOR_THE_HOST`.

    Its `step` is a place among the steps, `layer` -1 for none, `component` a category of KINDS; it
    is charged `us` and the gap of `gap_us` before it, and ran for `took_us`, whatever ran beside
    it. `calls` is 1, or 0 of an operator's later stretch and of a wait.
    """
    length_us: Floats  # of each step
    context_tokens: float  # mean over the steps

    @cached_property
    def typical(self) -> TypicalStep:
        """The steps of middle length."""
        return typical_step(self.length_us)

    @cached_property
    def counts(self) -> Flags:
        """Which rows are of typical steps."""
        return np.isin(self.rows["step"].to_numpy(), self.typical.steps)

    @cached_property
    def waits(self) -> Flags:
        """Which rows are waits for the host."""
        return (self.rows["component"] == FOR_THE_HOST).to_numpy()

    @property
    def traced_us(self) -> float:
        """Mean time of a typical step."""
        return self.a_step(self.rows["us"] + self.rows["gap_us"])

    @property
    def waits_us(self) -> float:
        """What of it the device waits for the host."""
        return self.a_step(self.rows["gap_us"].where(self.waits, 0.0))

    def gaps_us(self, cost: float) -> Floats:
        """The gap before each row with that cost taken off, none below 0."""
        return np.maximum(self.rows["gap_us"].to_numpy() - cost, 0.0)

    def a_step(self, values: pd.Series) -> float:
        """The sum over the rows of a typical step, in the mean."""
        return float(values.to_numpy()[self.counts].sum()) / len(self.typical.steps)


def attributed(start: Int64s, end: Int64s) -> tuple[Int64s, Int64s]:
    """Of each kernel's run the time since all before had ended, and how long nothing ran before it.

    Both together, in ns, are the time from the first start to the last end. Starts ascend. One that
    runs beside a longer one is charged nothing: so each has one gap, from which tracing is taken.
    """
    end = np.maximum(end, start)
    reached = np.append(start[:1], np.maximum.accumulate(end)[:-1])
    return np.maximum(end - np.maximum(start, reached), 0), np.maximum(start - reached, 0)


def read_steps(bundle: Bundle, batch_size: int) -> SwappedSteps:
    """The watched steps of rank 0 of that size."""
    if 0 not in bundle.ranks:
        raise CommandError(f"{bundle.path} has no rank 0; record both sides")
    if bundle.meta.settings.get("summed"):
        raise CommandError(f"{bundle.path} holds sums without times; record both sides")
    columns = ["step", "phase", "decode_requests", "context_tokens", "piece", "watched"]
    steps = bundle.frame("steps", 0, columns).sort_values("step")
    if not steps["step"].is_unique:
        raise CommandError(f"{bundle.path} has two steps of one number; it is damaged")
    chosen = steps["watched"] & (steps["phase"] == "decode")
    steps = steps[chosen & (steps["decode_requests"] == batch_size)]
    placed = place_kernels(bundle, 0, ("graph_node", "correlation"))
    number, piece = steps["step"].to_numpy(np.int64), steps["piece"].to_numpy()
    has_kernels = np.isin(number, placed["step"].to_numpy())
    follows = np.append(False, (np.diff(number) == 1) & (np.diff(piece) == 0) & has_kernels[:-1])
    steps = steps[follows[: len(steps)] & has_kernels][:_MOST_STEPS]
    if steps.empty:
        raise CommandError(
            f"{bundle.path} has no two decode steps of {batch_size} requests after one "
            "another with kernels; record more steps"
        )
    rows, length_us = _attributed(placed, steps["step"].to_numpy(np.int64))
    return SwappedSteps(rows, length_us, float(steps["context_tokens"].mean()))


def _attributed(placed: pd.DataFrame, chosen: Int64s) -> tuple[pd.DataFrame, Floats]:
    start, end = (placed[side].to_numpy() for side in ("start_ns", "end_ns"))
    busy, gap = attributed(start, end)
    # What ran for no known step delayed the next known one.
    numbers = pd.Series(placed["step"].to_numpy(np.int64)).where(lambda number: number >= 0)
    step = np.asarray(numbers.bfill().fillna(-1), np.int64)
    first = np.zeros(len(placed), bool)
    first[np.unique(step, return_index=True)[1]] = True
    # Between two steps, or the host had not launched yet what the device was ready for.
    waited = first | (_launched(placed) & (gap > _LAUNCH_NS))
    at = positions(chosen, step)
    rows = pd.DataFrame(
        {
            "step": at,
            "layer": placed["layer"].to_numpy(np.int64),
            "component": placed["component"].astype(str).to_numpy(),
            "name": placed["name"].astype(str).to_numpy(),
            "us": busy,
            "gap_us": np.where(waited, 0, gap),
            "took_us": np.maximum(end - start, 0),
            "calls": (placed["part"] == 0).to_numpy(np.float64),
        }
    )
    waits = rows[waited].assign(
        layer=-1, component=FOR_THE_HOST, name="", us=0, took_us=0, calls=0.0
    )
    rows = pd.concat([rows, waits.assign(gap_us=gap[waited])])
    rows = rows[rows["step"] >= 0].reset_index(drop=True)
    length = np.bincount(rows["step"], rows["us"] + rows["gap_us"], len(chosen))
    # All are whole nanoseconds up to here.
    times = ["us", "gap_us", "took_us"]
    rows = rows.assign(component=pd.Categorical(rows["component"], KINDS), **rows[times] / 1e3)
    return rows, length / 1e3


def _launched(placed: pd.DataFrame) -> Flags:
    """Whether the host launched a row by itself, or a graph that begins with it."""
    launched: Flags = placed["graph_node"].to_numpy() == 0
    within = np.flatnonzero(~launched)
    correlation = placed["correlation"].to_numpy()[within]
    launched[within[np.unique(correlation, return_index=True)[1]]] = True
    return launched


def tracing_cost(gaps: Floats, excess: float) -> float:
    """What, taken off every gap, makes up the excess; no gap loses more than it has.

    0 without an excess; the longest gap where all gaps together are no more than it.
    """
    lengths = np.sort(gaps[gaps > 0]).astype(np.float64)
    if excess <= 0 or not len(lengths):
        return 0.0
    # With the n shortest gaps gone, the others have lost as much each as the n-th.
    shorter_us = np.append(0.0, np.cumsum(lengths))[:-1]
    left = len(lengths) - np.arange(len(lengths))
    number = int(np.searchsorted(shorter_us + left * lengths, excess))
    if number == len(lengths):
        return float(lengths[-1])
    return float((excess - shorter_us[number]) / left[number])

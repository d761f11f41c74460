"""The decode steps of a side whose kernels were swapped, and what is attributed to each kernel.

A step begins where the one before it ends on the device and lasts until its own last kernel ends,
so that steps after one another add up to the time that they took together.

A profiler that notes the begin and the end of each kernel holds up the next one. Kernels that start
before the one before them has ended have no such gap, and nothing is taken off them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
import pandas as pd

from spark_prof.analyzers.attribution.order import CODES
from spark_prof.analyzers.attribution.placement import place_kernels
from spark_prof.analyzers.classify.classifier import spelling
from spark_prof.analyzers.comparing.noise import drawn_again
from spark_prof.analyzers.comparing.swap_attribution import FOR_THE_HOST
from spark_prof.analyzers.instants import RunWork, attribute
from spark_prof.analyzers.lookup import combined, positions
from spark_prof.analyzers.step_time import edges_of, middle_half
from spark_prof.analyzers.views.layer_cells import KernelColumns
from spark_prof.arrays import Flags, Floats, Int64s
from spark_prof.errors import CommandError
from spark_prof.rules.kernel_names import NAME_LIMIT
from spark_prof.traces.bundle import Bundle
from spark_prof.vocabulary import COMPONENTS

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
    attribution, _ = attribute(
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
    """The steps that make up a typical step, and how they would vary if drawn again."""

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
    owns `us` and the gap of `gap_us` before it, and ran for `took_us`, whatever ran beside it.
    `calls` is 1, or 0 of an operator's later stretch and of a wait.
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
        """Mean time of a typical step in which the device waits for the host."""
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
    runs beside a longer one owns nothing: so each has one gap, from which tracing is taken.
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

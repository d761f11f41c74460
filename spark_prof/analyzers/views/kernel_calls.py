"""All calls of one kernel: how long they took, in which layers and steps, and in which shapes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pandas as pd

from spark_prof.analyzers.breakdown import KernelRow
from spark_prof.analyzers.classify.classifier import kernel_id
from spark_prof.analyzers.lookup import positions
from spark_prof.analyzers.model import Report
from spark_prof.analyzers.roofline.roofline_rows import RooflineRow
from spark_prof.analyzers.roofline.rows import together
from spark_prof.analyzers.shapes.shape_rows import SHAPE_COLUMNS
from spark_prof.analyzers.step_time import StepKind
from spark_prof.analyzers.views.layer_cells import KernelColumns, call_times
from spark_prof.arrays import Floats, Int64s
from spark_prof.vocabulary import COMPONENTS


@dataclass(frozen=True)
class KernelFacts:
    """One kernel and component, in the steps of one kind."""

    place: int  # of its name in the kernels' names
    row: KernelRow  # what it is, and its sums over all steps
    phase: str  # of the steps; all for every one
    calls: float  # in the typical one of these
    us: float  # in such a step
    share: float  # of the kernel time of these steps
    floor: RooflineRow | None  # what the roofline says of a mean call; None where it says nothing

    @property
    def role(self) -> str:
        """What tells it from its like: w13, gate_up_proj, attn; its component where nothing does.

        The weights that it is known to read come first, then the modules that it works for.
        """
        weights = self.floor.weights if self.floor else ()
        modules = [re.split(r"\.|::", role)[-1] for role in self.row.roles]
        return ", ".join(dict.fromkeys(weights or modules)) or self.row.component


def facts_of(
    report: Report, names: Sequence[str], kind: StepKind, sums: pd.DataFrame
) -> tuple[KernelFacts, ...]:
    """The kernels that run in steps of one kind, what takes the most time first.

    Args:
        names: of the rank's kernels, as `KernelColumns` has them.
        sums: what `breakdown.sums_of` returned.
    """
    places = {name: place for place, name in enumerate(names)}
    roofline = report.roofline
    phases = {phase.phase: phase for phase in roofline.phases} if roofline else {}
    # Where all steps count, the floors of decode say most.
    phases_named = ("decode", *phases) if kind.phase == "all" else (kind.phase,)
    phase = next((phases[name] for name in phases_named if name in phases), None)
    floors = together(phase.rows) if phase else {}
    steps = kind.steps or 1
    of_phase_rows = sums[sums["phase"] == kind.phase].groupby(["name", "component"], observed=True)
    typical = of_phase_rows[["step_calls", "us"]].sum().itertuples(name=None)
    of_phase = {key: (calls, us) for key, calls, us in typical}
    kernels = []
    for row in report.kernels:
        key = row.name, row.component
        mean = (row.calls / steps, row.us / steps) if kind.phase == "all" else None
        if figures := mean or of_phase.get(key):
            calls, us = figures
            floor = floors.get(key)
            kernels.append(KernelFacts(places[row.name], row, kind.phase, calls, us, 0.0, floor))
    a_step = sum(entry.us for entry in kernels) or 1.0
    kernels = [replace(entry, share=entry.us / a_step) for entry in kernels]
    return tuple(sorted(kernels, key=lambda entry: -entry.us))


def search(
    kernels: Sequence[KernelFacts],
    text: str = "",
    engine: str = "",
    precision: str = "",
    component: str = "",
) -> tuple[KernelFacts, ...]:
    """Those that are looked for, in their order; what is empty does not matter.

    The words of the text all stand in name, id, component, roles or conversion, in any case.
    """
    words = text.casefold().split()

    def fits(facts: KernelFacts) -> bool:
        row = facts.row
        texts = (
            row.name, kernel_id(row.name), row.component, facts.role, *row.roles,
            row.conversion or "",
        )  # fmt: skip
        searched = " ".join(texts).casefold()
        return (
            engine in ("", row.engine)
            and precision in ("", row.precision)
            and component in ("", row.component)
            and all(word in searched for word in words)
        )

    return tuple(facts for facts in kernels if fits(facts))


_MOST_CALLS = 2_000_000
_BARS = 60
_BINS = 600
_CLOCK_NS = 32
"""What kernel times are multiples of in the H100 recordings of tests/data, to a nanosecond. Bars of
other widths would hold one more of these times than their neighbours, and stand out."""


@dataclass(frozen=True)
class KernelCalls:
    """The calls of one kernel in the analyzed steps, in order of start."""

    all: int
    # Of those that are looked at: all, or evenly spread ones of very many.
    took_ns: Int64s
    step: npt.NDArray[np.int32]  # place of their step in the steps' table
    layer: npt.NDArray[np.int16]
    component: npt.NDArray[np.uint8]  # place in `vocabulary.COMPONENTS`
    launch: npt.NDArray[np.int32]  # place in the kernels' launches

    def __len__(self) -> int:
        return len(self.took_ns)


@dataclass(frozen=True)
class LaunchUse:
    """One shape in which the kernel was launched."""

    grid: str  # blocks in x, y and z, as the bundle writes them; empty where unknown
    block: str
    registers: int  # of a thread, 0 where unknown
    shared_bytes: int  # of a block, static and dynamic, 0 where unknown
    calls: int
    share: float
    median_us: float


@dataclass(frozen=True)
class LayerUse:
    """The kernel in one layer and component."""

    layer: int
    component: str
    calls: int
    median_us: float
    p90_us: float


@dataclass(frozen=True)
class Histogram:
    """How many calls took how long, in microseconds."""

    # Of the bars, one more than there are bars; the last bar holds what took longer.
    edges_us: Floats
    counts: Int64s
    least_us: float
    median_us: float
    p90_us: float
    p99_us: float
    most_us: float


@dataclass(frozen=True)
class Series:
    """The kernel's calls in the course of the recording, in microseconds; the arrays are alike."""

    step: Int64s  # number of the first step of each stretch
    steps: int  # how many steps make a stretch
    median_us: Floats
    low_us: Floats  # the 10th percentile
    high_us: Floats  # the 90th percentile


def calls_of(kernels: KernelColumns, steps: pd.DataFrame, name: int) -> KernelCalls:
    """The calls of one kernel."""
    rows = np.flatnonzero(kernels.name == name)
    step = positions(steps["step"].to_numpy(), kernels.step[rows])
    rows, step = rows[step >= 0], step[step >= 0]
    every = max(1, -(-len(rows) // _MOST_CALLS))
    thinned = rows[::every]
    return KernelCalls(
        all=len(rows),
        took_ns=kernels.end_ns[thinned] - kernels.start_ns[thinned],
        step=step[::every],
        layer=kernels.layer[thinned],
        component=kernels.component[thinned],
        launch=kernels.launch[thinned],
    )


def launches(calls: KernelCalls, kernels: KernelColumns) -> tuple[LaunchUse, ...]:
    """The shapes in which it was launched, what takes the most time first."""
    groups = kernels.launches.groupby(list(SHAPE_COLUMNS), observed=True, sort=False)
    shapes: list[tuple[str, str, int, int]] = list(groups.size().index)
    table = call_times(calls.took_ns, groups.ngroup().to_numpy()[calls.launch])
    whole = float(table["us"].sum()) or 1.0
    rows = [
        LaunchUse(*shapes[int(shape)], count, us / whole, median)
        for shape, median, count, us in table.itertuples(name=None)
    ]
    return tuple(sorted(rows, key=lambda row: -row.share))


def layers(calls: KernelCalls) -> tuple[LayerUse, ...]:
    """The layers and components that use it, in order."""
    table = call_times(calls.took_ns, [calls.layer, calls.component], (0.5, 0.9))
    return tuple(
        LayerUse(int(layer), COMPONENTS[component], count, median, p90)
        for (layer, component), median, p90, count, _ in table.itertuples(name=None)
    )


def durations(calls: KernelCalls) -> Histogram | None:
    """How long its calls took; None where there are none."""
    if not len(calls):
        return None
    least, median, p90, p99, most = np.percentile(calls.took_ns, (0, 50, 90, 99, 100)) / 1e3
    # One call in a thousand that waited for something would else squeeze the others together.
    beyond = min(float(most), 2 * float(p99) - float(least))
    ticks = max(1, int(np.ceil((beyond - least) * 1e3 / _BARS / _CLOCK_NS)))
    width, first = ticks * _CLOCK_NS, round(least * 1e3) - _CLOCK_NS // 2
    counts = np.bincount(np.minimum((calls.took_ns - first) // width, _BARS - 1))
    edges = (first + np.arange(len(counts) + 1) * width) / 1e3
    return Histogram(
        edges, counts, float(least), float(median), float(p90), float(p99), float(most)
    )


def over_steps(calls: KernelCalls, steps: pd.DataFrame) -> Series:
    """Its calls in the course of the recording, in at most 600 stretches of equally many steps."""
    wide = max(1, -(-len(steps) // _BINS))
    table = call_times(calls.took_ns, calls.step // wide, (0.1, 0.5, 0.9))
    first = steps["step"].to_numpy(np.int64)[::wide][table.index]
    low, median, high = (table[at].to_numpy() for at in (0.1, 0.5, 0.9))
    return Series(first, wide, median, low, high)

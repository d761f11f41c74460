"""All calls of one kernel: how long they took, in which layers and steps, and in which shapes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from spark_prof.analyzers.breakdown import KernelRow
from spark_prof.analyzers.lookup import positions
from spark_prof.analyzers.model import Report
from spark_prof.analyzers.roofline.roofline_rows import RooflinePhase, RooflineRow
from spark_prof.analyzers.roofline.rows import together
from spark_prof.analyzers.views.kernel_columns import KernelColumns, Launch
from spark_prof.analyzers.views.layer_cells import grouped_percentiles
from spark_prof.vocabulary import COMPONENTS


@dataclass(frozen=True)
class KernelFacts:
    """One kernel and component."""

    place: int  # of its name in the kernels' names, -1 where they do not have it
    row: KernelRow
    calls: float  # in a mean step
    floor: RooflineRow | None  # what the roofline says of a mean call; None where it says nothing


@dataclass(frozen=True)
class Wanted:
    """Which kernels are looked for; what is empty does not matter."""

    text: str = ""  # words that all stand in name, component, roles or conversion, in any case
    engine: str = ""
    precision: str = ""
    component: str = ""


def phase_of(report: Report) -> RooflinePhase | None:
    """The phase whose floors are shown: decode, or another where no step decodes."""
    found = report.roofline
    if found is None:
        return None
    return found.decode or next(iter(found.phases), None)


def facts_of(report: Report, names: Sequence[str]) -> tuple[KernelFacts, ...]:
    """All kernels of a report, what takes the most time first.

    Args:
        names: of the rank's kernels, as `KernelColumns` has them.
    """
    places = {name: place for place, name in enumerate(names)}
    phase = phase_of(report)
    floors = together(phase.rows) if phase else {}
    steps = report.steps.count or 1
    return tuple(
        KernelFacts(
            places.get(row.name, -1), row, row.calls / steps, floors.get((row.name, row.component))
        )
        for row in sorted(report.kernels, key=lambda row: -row.us)
    )


def search(found: Sequence[KernelFacts], wanted: Wanted) -> tuple[KernelFacts, ...]:
    """Those that are looked for, in their order."""
    words = wanted.text.casefold().split()
    return tuple(facts for facts in found if _fits(facts.row, wanted, words))


def _fits(row: KernelRow, wanted: Wanted, words: Sequence[str]) -> bool:
    text = " ".join((row.name, row.component, *row.roles, row.conversion or "")).casefold()
    return (
        wanted.engine in ("", row.engine)
        and wanted.precision in ("", row.precision)
        and wanted.component in ("", row.component)
        and all(word in text for word in words)
    )


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
    took_ns: npt.NDArray[np.int64]
    step: npt.NDArray[np.int32]  # place of their step in the steps' table
    layer: npt.NDArray[np.int16]
    component: npt.NDArray[np.uint8]  # place in `vocabulary.COMPONENTS`
    launch: npt.NDArray[np.int32]  # place in the kernels' launches

    def __len__(self) -> int:
        return len(self.took_ns)


@dataclass(frozen=True)
class LaunchUse:
    """One shape in which the kernel was launched."""

    launch: Launch
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
    edges_us: npt.NDArray[np.float64]
    counts: npt.NDArray[np.int64]
    least_us: float
    median_us: float
    p90_us: float
    p99_us: float
    most_us: float


@dataclass(frozen=True)
class Series:
    """The kernel's calls in the course of the recording, in microseconds; the arrays are alike."""

    step: npt.NDArray[np.int64]  # number of the first step of each stretch
    steps: int  # how many steps make a stretch
    median_us: npt.NDArray[np.float64]
    low_us: npt.NDArray[np.float64]  # the 10th percentile
    high_us: npt.NDArray[np.float64]  # the 90th percentile


def calls_of(kernels: KernelColumns, steps: pd.DataFrame, name: int) -> KernelCalls:
    """The calls of one kernel."""
    rows = np.flatnonzero(kernels.name == name)
    step = positions(steps["step"].to_numpy(), kernels.step[rows])
    rows, step = rows[step >= 0], step[step >= 0]
    every = max(1, -(-len(rows) // _MOST_CALLS))
    seen = rows[::every]
    return KernelCalls(
        all=len(rows),
        took_ns=kernels.end_ns[seen] - kernels.start_ns[seen],
        step=step[::every],
        layer=kernels.layer[seen],
        component=kernels.component[seen],
        launch=kernels.launch[seen],
    )


def launches(calls: KernelCalls, kernels: KernelColumns) -> tuple[LaunchUse, ...]:
    """The shapes in which it was launched, what takes the most time first."""
    found, place, counts = _numbered(calls.launch)
    ns = np.bincount(place, calls.took_ns, len(found))
    (median,) = grouped_percentiles(place, calls.took_ns, len(found), (50,)) / 1e3
    whole = float(ns.sum()) or 1.0
    rows = [
        LaunchUse(kernels.launches[own], int(count), float(time) / whole, float(middle))
        for own, count, time, middle in zip(found.tolist(), counts, ns, median, strict=True)
    ]
    return tuple(sorted(rows, key=lambda row: -row.share))


def layers(calls: KernelCalls) -> tuple[LayerUse, ...]:
    """The layers and components that use it, in order."""
    code = np.maximum(calls.layer, -1).astype(np.int64) + 1
    code = code * len(COMPONENTS) + calls.component
    found, place, counts = _numbered(code)
    at = grouped_percentiles(place, calls.took_ns, len(found), (50, 90)) / 1e3
    return tuple(
        LayerUse(
            own // len(COMPONENTS) - 1, COMPONENTS[own % len(COMPONENTS)], int(count),
            float(median), float(p90),
        )
        for own, count, median, p90 in zip(found.tolist(), counts, *at, strict=True)
    )  # fmt: skip


def _numbered(
    code: npt.NDArray[np.integer[Any]],
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """The codes that occur, the place of each call's among them, and how often each occurs."""
    counts = np.bincount(code)
    found = np.flatnonzero(counts)
    place = np.zeros(len(counts), np.int64)
    place[found] = np.arange(len(found))
    return found, place[code], counts[found]


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
    stretches = -(-len(steps) // wide)
    at = grouped_percentiles(calls.step // wide, calls.took_ns, stretches, (10, 50, 90)) / 1e3
    some = ~np.isnan(at[1])
    first = steps["step"].to_numpy(np.int64)[::wide]
    return Series(first[some], wide, at[1][some], at[0][some], at[2][some])

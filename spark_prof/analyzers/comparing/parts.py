"""Takes the difference of typical steps apart: components and gaps, layers, kernels."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import NamedTuple, TypeVar

import numpy as np

from spark_prof.analyzers.breakdown import KernelRow
from spark_prof.analyzers.comparing.comparison import (
    ComparedRecording,
    KernelPart,
    LayerPart,
    StepPart,
)
from spark_prof.analyzers.comparing.noise import (
    CALL_FLOOR_US,
    FEWEST_STEPS,
    GAP_FLOOR,
    KERNEL_FLOOR,
    Change,
    Figure,
    change,
    stretch_of,
)
from spark_prof.analyzers.comparing.swapped_steps import (
    KernelTime,
    TypicalStep,
    kernel_time,
    typical_step,
)
from spark_prof.analyzers.step_time import GAPS
from spark_prof.arrays import Floats, Int64s
from spark_prof.vocabulary import COMPONENTS

Code = Callable[[KernelTime], Int64s]  # the row that each kernel counts to

_MOST_STEPS = 1024
"""Steps of one size that are taken apart, in runs that are spread over the recording."""
_RUN = 128


@dataclass(frozen=True, eq=False)
class SizedSteps:
    """Steps of one size of one recording, and which of them are typical."""

    time: KernelTime
    typical: TypicalStep
    weight: float  # their share in the comparison
    divisor: Floats  # what each step's times are divided by: 1, or its prompt tokens
    free: float  # degrees of freedom of errors


@dataclass(frozen=True, eq=False)
class RecordingSteps:
    """The steps of one recording, to be taken apart."""

    sizes: Sequence[SizedSteps]
    side: ComparedRecording
    spelled: dict[int, str]  # one name of the trace for each stable name that this recording has

    def figures(self, code: Code, rows: int) -> list[Figure]:
        """The figure of each row of kernels."""
        tables = [steps.time.table(code(steps.time), rows) for steps in self.sizes]
        return self.figures_of(tables, lambda value: self.floors(value, code))

    def figures_of(
        self, tables: Sequence[Floats], floors: Callable[[Floats], Floats]
    ) -> list[Figure]:
        """The figure of each row, from a table of rows by steps of each size.

        Args:
            floors: from the figures to their own standard deviations between recordings.
        """
        pairs = [
            (steps, table / steps.divisor) for steps, table in zip(self.sizes, tables, strict=True)
        ]
        value = np.asarray(sum(steps.weight * steps.typical.mean(table) for steps, table in pairs))
        errors = [steps.weight * steps.typical.error(table) for steps, table in pairs]
        error = np.sqrt(sum(part**2 for part in errors))
        if min(len(steps.divisor) for steps in self.sizes) < FEWEST_STEPS:
            error = np.full(len(value), math.inf)
        free = min(steps.free for steps in self.sizes)
        rows = np.stack([value, error, floors(value), self.side.start * value], axis=1)
        return [Figure(mean, varies, free, *rest) for mean, varies, *rest in rows.tolist()]

    def floors(self, value: Floats, code: Code) -> Floats:
        """How much figures of kernels differ on their own between recordings, one each row."""
        moved = sum(
            steps.weight * steps.time.calls(code(steps.time), len(value)) / steps.divisor.mean()
            for steps in self.sizes
        )
        return np.hypot(KERNEL_FLOOR * value, CALL_FLOOR_US * np.asarray(moved))

    def calls(self, code: Code, rows: int) -> Floats:
        """The kernels of each row in a mean typical step."""
        count = sum(
            steps.weight
            * steps.typical.mean(steps.time.table(code(steps.time), rows, steps.time.call_counts))
            for steps in self.sizes
        )
        return np.asarray(count, np.float64)


Recordings = Sequence[RecordingSteps]  # the recordings of one side


def taken_apart(
    side: ComparedRecording, names: Int64s, groups: Iterable[tuple[Int64s, float]], divisor: Floats
) -> RecordingSteps:
    """The steps of a recording: of each size their places, and their share in the comparison."""
    sizes = []
    for places, weight in groups:
        chosen = _spread(places)
        time = kernel_time(side.kernels, side.steps, names, chosen)
        length = time.length_us / divisor[chosen]
        stretch = stretch_of(length)
        free = max(len(chosen) / stretch - 1, 1.0)
        sizes.append(SizedSteps(time, typical_step(length, stretch), weight, divisor[chosen], free))
    # Of several names that mean the same the first one is shown.
    pairs = zip(names[::-1].tolist(), side.kernels.names[::-1], strict=True)
    return RecordingSteps(sizes, side, dict(pairs))


def _spread(chosen: Int64s) -> Int64s:
    if len(chosen) <= _MOST_STEPS:
        return chosen
    starts = np.linspace(0, len(chosen) - _RUN, _MOST_STEPS // _RUN).astype(np.int64)
    return np.asarray(chosen[(starts[:, None] + np.arange(_RUN)).ravel()])


_Changed = TypeVar("_Changed", StepPart, LayerPart, KernelPart)


def _ranked(parts: Iterable[_Changed]) -> tuple[_Changed, ...]:
    """The slower one first."""
    return tuple(sorted(parts, key=lambda part: -part.change.us))


def step_parts(a: Recordings, b: Recordings) -> tuple[StepPart, ...]:
    """Components and gaps, which add up to the typical step; the slower one first."""
    names = (*COMPONENTS, *GAPS)
    changes = _changes(a, b, _step_figures)
    calls = ([*_calls(side, _component, len(COMPONENTS)), 0.0, 0.0] for side in (a, b))
    engines = ([_engines(side).get(name, ()) for name in names] for side in (a, b))
    rows = zip(names, changes, *calls, *engines, strict=True)
    return _ranked(StepPart(*row) for row in rows if row[1].a or row[1].b)


def layer_parts(a: Recordings, b: Recordings, *, whole: bool = False) -> tuple[LayerPart, ...]:
    """Each component of each layer that either side ran, or whole layers; the slower one first."""
    kinds = ("",) if whole else COMPONENTS
    layers = 2 + max(int(time.layer.max(initial=-1)) for time in _times(*a, *b))

    def cells(time: KernelTime) -> Int64s:
        return (time.layer + 1) * len(kinds) + (0 if whole else time.component)

    changes = _changes(a, b, lambda recording: recording.figures(cells, layers * len(kinds)))
    return _ranked(
        LayerPart(layer - 1 if layer else None, kind, change)
        for (layer, kind), change in zip(product(range(layers), kinds), changes, strict=True)
        if (change.a or change.b) and (layer or not whole)
    )


def kernel_parts(a: Recordings, b: Recordings) -> tuple[KernelPart, ...]:
    """The kernels of each stable name in each component; the slower one first."""
    codes = np.unique(np.concatenate([_kernel_code(time) for time in _times(*a, *b)]))

    def row(time: KernelTime) -> Int64s:
        return np.searchsorted(codes, _kernel_code(time))

    changes = _changes(a, b, lambda recording: recording.figures(row, len(codes)))
    return _ranked(
        KernelPart(
            name=one.name if one.calls else other.name,
            component=COMPONENTS[code % len(COMPONENTS)],
            change=change,
            calls_a=one.calls,
            calls_b=other.calls,
            layers_a=one.layers,
            layers_b=other.layers,
            engine_a=one.engine,
            engine_b=other.engine,
        )
        for code, change, one, other in zip(
            codes.tolist(),
            changes,
            _kernels_of(a, codes, row),
            _kernels_of(b, codes, row),
            strict=True,
        )
        if one.calls or other.calls
    )


def conversions_figure(recording: RecordingSteps) -> Figure:
    """What of a typical step goes to kernels that only convert formats."""
    converting = {row.name for row in recording.side.report.kernels if row.conversion}
    names = [stable for stable, name in recording.spelled.items() if name in converting]

    # Row 1 is what converts, row 0 everything else.
    return recording.figures(lambda time: np.isin(time.name, names).astype(np.int64), 2)[1]


def typical_figure(recording: RecordingSteps) -> Figure:
    """The time of a typical step."""
    lengths = [steps.time.length_us[None] for steps in recording.sizes]
    return recording.figures_of(lengths, np.zeros_like)[0]


def _times(*recordings: RecordingSteps) -> list[KernelTime]:
    return [steps.time for recording in recordings for steps in recording.sizes]


def _changes(
    a: Recordings, b: Recordings, figures: Callable[[RecordingSteps], Sequence[Figure]]
) -> list[Change]:
    sides = (zip(*map(figures, side), strict=True) for side in (a, b))
    return [change(*pair) for pair in zip(*sides, strict=True)]


def _calls(side: Recordings, code: Code, rows: int) -> list[float]:
    """The kernels of each row in a step, the mean over the recordings of a side."""
    return list(np.mean([recording.calls(code, rows) for recording in side], axis=0).tolist())


def _step_figures(recording: RecordingSteps) -> list[Figure]:
    """The components, then the gaps within steps and those between them."""

    def floors(value: Floats) -> Floats:
        kernels = recording.floors(value[: len(COMPONENTS)], _component)
        return np.append(kernels, GAP_FLOOR * value[len(COMPONENTS) :])

    tables = [
        np.concatenate([time.table(time.component, len(COMPONENTS)), time.gaps_us])
        for time in _times(recording)
    ]
    return recording.figures_of(tables, floors)


def _component(time: KernelTime) -> Int64s:
    return time.component


def _kernel_code(time: KernelTime) -> Int64s:
    return time.name * len(COMPONENTS) + time.component


class _SideKernels(NamedTuple):
    """The kernels of one stable name in one component on one side."""

    name: str  # the first recording's that has it
    calls: float
    layers: tuple[int, ...]
    engine: str


def _kernels_of(side: Recordings, codes: Int64s, row: Code) -> list[_SideKernels]:
    calls = _calls(side, row, len(codes))
    layers: dict[int, set[int]] = defaultdict(set)
    for time in _times(*side):
        width = int(time.layer.max(initial=-1)) + 2
        for pair in np.unique(_kernel_code(time) * width + time.layer + 1).tolist():
            layers[pair // width] |= {pair % width - 1} - {-1}
    names: dict[int, str] = {}
    engines: dict[tuple[str, str], str] = {}
    for recording in reversed(side):
        names |= recording.spelled
        engines |= {(r.name, r.component): _engine(r) for r in recording.side.report.kernels}
    kernels = []
    for code, called in zip(codes.tolist(), calls, strict=True):
        name = names.get(code // len(COMPONENTS), "")
        engine = engines.get((name, COMPONENTS[code % len(COMPONENTS)]), "") if called else ""
        kernels.append(_SideKernels(name, called, tuple(sorted(layers[code])), engine))
    return kernels


def _engine(row: KernelRow) -> str:
    words = [row.engine, row.precision or ""]
    if row.weights:
        words.append(f"from {row.weights} weights")
    return " ".join(filter(None, words))


def _engines(side: Recordings) -> dict[str, tuple[tuple[str, float], ...]]:
    """On what each component's kernels of decode steps ran, as shares of their time."""
    sums: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for row in (row for recording in side for row in recording.side.report.kernels):
        sums[row.component][_engine(row)] += row.decode_us
    return {
        name: tuple(
            (label, us_by_engine[label] / total)
            for label in sorted(us_by_engine, key=lambda x: -us_by_engine[x])
        )
        for name, us_by_engine in sums.items()
        if (total := sum(us_by_engine.values()))
    }

"""Takes the difference of typical steps apart: components and gaps, layers, kernels."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import product, repeat
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from spark_prof.analyzers.breakdown import KernelRow
from spark_prof.analyzers.comparing.comparison import KernelPart, LayerPart, Part
from spark_prof.analyzers.comparing.kernel_time import KernelTime, SizedSteps, figures
from spark_prof.analyzers.comparing.noise import (
    CALL_FLOOR_US,
    GAP_FLOOR,
    KERNEL_FLOOR,
    Change,
    Figure,
    change,
)
from spark_prof.analyzers.model import Report
from spark_prof.analyzers.step_time import HOST, LAUNCH_GAPS
from spark_prof.vocabulary import COMPONENTS

Int64s = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Taken:
    """The steps of one recording, to be taken apart."""

    typical: Sequence[SizedSteps]  # by size
    report: Report  # of the recording
    start: float  # by how much engine starts of this kind are taken to differ, as a share
    stable: Sequence[str]  # stable names, of all recordings
    spelled: dict[int, str]  # one name of the trace for each stable name that this recording has

    def figures(self, code: Callable[[KernelTime], Int64s], rows: int) -> list[Figure]:
        """The figure of each row of kernels."""
        tables = [each.time.table(code(each.time), rows) for each in self.typical]
        return figures(self.typical, tables, lambda value: self.floors(value, code), self.start)

    def floors(self, value: Floats, code: Callable[[KernelTime], Int64s]) -> Floats:
        """How much figures of kernels differ on their own between recordings, one each row."""
        moved = sum(
            each.weight * each.time.calls(code(each.time), len(value)) / each.divisor.mean()
            for each in self.typical
        )
        return np.hypot(KERNEL_FLOOR * value, CALL_FLOOR_US * np.asarray(moved))

    def means(self, tabulate: Callable[[KernelTime], Floats]) -> Floats:
        """The mean of each row over typical steps, without its error."""
        found = sum(each.weight * each.typical.mean(tabulate(each.time)) for each in self.typical)
        return np.asarray(found, np.float64)


Recordings = Sequence[Taken]
"""The recordings of one side."""


_Changed = TypeVar("_Changed", Part, LayerPart, KernelPart)


def _ranked(found: Iterable[_Changed]) -> tuple[_Changed, ...]:
    """The slower one first."""
    return tuple(sorted(found, key=lambda part: -part.change.us))


def step_parts(a: Recordings, b: Recordings) -> tuple[Part, ...]:
    """Components and gaps, which add up to the typical step; the slower one first."""
    names = (*COMPONENTS, LAUNCH_GAPS, HOST)
    changes = _by_row([_step_figures(each) for each in a], [_step_figures(each) for each in b])
    calls = (np.append(_means(side, _calls_by_component), [0.0, 0.0]).tolist() for side in (a, b))
    engines = (map(_engines(side).get, names, repeat(())) for side in (a, b))
    rows = zip(names, changes, *calls, *engines, strict=True)
    return _ranked(Part(*row) for row in rows if row[1].a or row[1].b)


def layer_parts(a: Recordings, b: Recordings, *, whole: bool = False) -> tuple[LayerPart, ...]:
    """Each component of each layer that either side ran, or whole layers; the slower one first."""
    kinds = ("",) if whole else COMPONENTS
    every = [each.time.layer for taken in (*a, *b) for each in taken.typical]
    layers = 2 + max(int(layer.max(initial=-1)) for layer in every)

    def cells(time: KernelTime) -> Int64s:
        return (time.layer + 1) * len(kinds) + (0 if whole else time.component)

    changes = _changes(a, b, cells, layers * len(kinds))
    return _ranked(
        LayerPart(layer - 1 if layer else None, kind, each)
        for (layer, kind), each in zip(product(range(layers), kinds), changes, strict=True)
        if (each.a or each.b) and (layer or not whole)
    )


def kernel_parts(a: Recordings, b: Recordings) -> tuple[KernelPart, ...]:
    """The kernels of each stable name in each component; the slower one first."""
    code = [_kernel_code(each.time) for taken in (*a, *b) for each in taken.typical]
    known = np.unique(np.concatenate([np.unique(each) for each in code]))

    def row(time: KernelTime) -> Int64s:
        return np.searchsorted(known, _kernel_code(time))

    changes = _changes(a, b, row, len(known))
    calls = [
        _means(side, lambda time: time.table(row(time), len(known), np.ones(len(time.us)))).tolist()
        for side in (a, b)
    ]
    layers = [_layers(side, known) for side in (a, b)]
    labels = [_labels(side) for side in (a, b)]
    names = [_spelled(side) for side in (a, b)]
    found = []
    for place, each in enumerate(changes):
        name, kind = divmod(int(known[place]), len(COMPONENTS))
        component = COMPONENTS[kind]
        own = [calls[side][place] for side in (0, 1)]
        spelled = [names[side].get(name, "") for side in (0, 1)]
        engines = [
            labels[side].get((spelled[side], component), "") if own[side] else "" for side in (0, 1)
        ]
        if any(own):
            first = spelled[0] if own[0] else spelled[1]
            ran = (layers[side][place] for side in (0, 1))
            found.append(KernelPart(first, component, each, *own, *ran, *engines))
    return _ranked(found)


def conversions_figure(taken: Taken) -> Figure:
    """What of a typical step goes to kernels that only convert formats."""
    converting = {row.name for row in taken.report.kernels if row.conversion}
    flags = np.zeros(len(taken.stable), bool)
    flags[[stable for stable, name in taken.spelled.items() if name in converting]] = True

    # Row 1 is what converts, row 0 everything else.
    return taken.figures(lambda time: flags[time.name].astype(np.int64), 2)[1]


def typical_figure(taken: Taken) -> Figure:
    """The typical step."""
    lengths = [each.time.length_us[None] for each in taken.typical]
    return figures(taken.typical, lengths, np.zeros_like, taken.start)[0]


def _changes(
    a: Recordings, b: Recordings, code: Callable[[KernelTime], Int64s], rows: int
) -> list[Change]:
    found = [[each.figures(code, rows) for each in side] for side in (a, b)]
    return _by_row(*found)


def _by_row(a: Sequence[Sequence[Figure]], b: Sequence[Sequence[Figure]]) -> list[Change]:
    """The change of each row, of which every recording has a figure."""
    pairs = zip(zip(*a, strict=True), zip(*b, strict=True), strict=True)
    return [change(*pair) for pair in pairs]


def _means(side: Recordings, tabulate: Callable[[KernelTime], Floats]) -> Floats:
    """The mean of each row over the recordings of a side."""
    return np.asarray(np.mean([each.means(tabulate) for each in side], axis=0))


def _step_figures(taken: Taken) -> list[Figure]:
    """The components, then the gaps within steps and those between them."""

    def floors(value: Floats) -> Floats:
        kernels = taken.floors(value[: len(COMPONENTS)], lambda time: time.component)
        return np.append(kernels, GAP_FLOOR * value[len(COMPONENTS) :])

    tables = [_by_component(each.time) for each in taken.typical]
    return figures(taken.typical, tables, floors, taken.start)


def _by_component(time: KernelTime) -> Floats:
    busy = time.table(time.component, len(COMPONENTS))
    between = time.table(np.zeros_like(time.component), 1, time.gap_us)
    host = time.length_us - busy.sum(axis=0) - between
    return np.concatenate([busy, between, host])


def _calls_by_component(time: KernelTime) -> Floats:
    return time.table(time.component, len(COMPONENTS), np.ones(len(time.us)))


def _kernel_code(time: KernelTime) -> Int64s:
    return time.name * len(COMPONENTS) + time.component


def _layers(side: Recordings, known: Int64s) -> list[tuple[int, ...]]:
    """The layers in which each of the known kernels ran."""
    found: list[set[int]] = [set() for _ in known]
    for each in (each for taken in side for each in taken.typical):
        rows = np.searchsorted(known, _kernel_code(each.time))
        layers = int(each.time.layer.max(initial=-1)) + 2
        present = np.bincount(rows * layers + each.time.layer + 1, minlength=len(known) * layers)
        for row, layer in np.argwhere(present.reshape(-1, layers)[:, 1:]).tolist():
            found[row].add(layer)
    return [tuple(sorted(layers)) for layers in found]


def _spelled(side: Recordings) -> dict[int, str]:
    """One name of the trace for each stable name; the first recording's where it has one."""
    names: dict[int, str] = {}
    for taken in reversed(side):
        names |= taken.spelled
    return names


def _label(row: KernelRow) -> str:
    words = [row.engine, row.precision or ""]
    if row.weights:
        words.append(f"from {row.weights} weights")
    return " ".join(filter(None, words))


def _labels(side: Recordings) -> dict[tuple[str, str], str]:
    rows = [row for taken in reversed(side) for row in taken.report.kernels]
    return {(row.name, row.component): _label(row) for row in rows}


def _engines(side: Recordings) -> dict[str, tuple[tuple[str, float], ...]]:
    """On what each component's kernels of decode steps ran, as shares of their time."""
    sums: dict[str, dict[str, float]] = {}
    for row in (row for taken in side for row in taken.report.kernels):
        us = row.decode_us or 0.0
        own = sums.setdefault(row.component, {})
        own[_label(row)] = own.get(_label(row), 0.0) + us
    return {
        name: tuple(
            sorted(((label, us / total) for label, us in own.items()), key=lambda item: -item[1])
        )
        for name, own in sums.items()
        if (total := sum(own.values()))
    }

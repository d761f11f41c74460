"""Compares layers that should be alike, and finds the outliers.

Layers are compared where they run the same kernels equally often, component by component. In each
step a layer is held against the median of its like; so whatever slows a whole step slows no layer.
The median of these differences over the steps makes an outlier where it lies further from those of
its like than their own scatter, the noise over the steps and the clock of the GPU explain, at one
chance in a hundred for all comparisons together, and by at least 3 %. docs/attribution.md has the
reasons.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal

import numpy as np
import pandas as pd

from spark_prof.analyzers.lookup import combined
from spark_prof.analyzers.t_distribution import student_quantile
from spark_prof.analyzers.views.layer_cells import KernelColumns, StepCells, of_steps
from spark_prof.arrays import Flags, Floats
from spark_prof.vocabulary import COMPONENTS

_OFTEN = 0.1  # a kernel that fewer of the steps call does not make a cell another one


@dataclass(frozen=True)
class CellPart:
    """What one kernel does in a cell, in a mean step."""

    name: int
    calls: float
    us: float


Makeups = dict[tuple[int, str], tuple[CellPart, ...]]
"""Of each cell, by layer (-1 for none) and component, the kernels with the most time first."""


def makeups(kernels: KernelColumns, steps: pd.DataFrame, chosen: Flags) -> Makeups:
    """What the chosen steps run in each cell; copies are no kernels."""
    rows, _ = kernels.of_steps(steps["step"].to_numpy()[chosen])
    number, first = combined(kernels.layer[rows], kernels.component[rows], kernels.name[rows])
    took = np.bincount(number, kernels.end_ns[rows] - kernels.start_ns[rows])
    count = int(chosen.sum())
    parts: dict[tuple[int, str], list[CellPart]] = defaultdict(list)
    for row, calls, ns in zip(rows[first], np.bincount(number), took, strict=True):
        part = CellPart(int(kernels.name[row]), int(calls) / count, float(ns) / 1e3 / count)
        parts[int(kernels.layer[row]), COMPONENTS[kernels.component[row]]].append(part)
    return {
        cell: tuple(sorted(cell_parts, key=lambda part: (-part.us, part.name)))
        for cell, cell_parts in parts.items()
    }


def layers_by_kernels(cells: Makeups) -> Iterator[tuple[str, list[list[int]]]]:
    """Of each component, layers that run the same kernels equally often, the most first.

    So layers with sliding and with full attention are alike in their experts where their attention
    runs other kernels.
    """
    for component in COMPONENTS:
        groups: dict[frozenset[tuple[int, int]], list[int]] = defaultdict(list)
        for layer in sorted(layer for layer, of in cells if of == component and layer >= 0):
            parts = cells[layer, component]
            kernels = frozenset(
                (p.name, max(1, round(p.calls))) for p in parts if p.calls >= _OFTEN
            )
            groups[kernels].append(layer)
        if groups:
            yield component, sorted(groups.values(), key=lambda group: -len(group))


_FEWEST_LAYERS = 4
_FEWEST_STEPS = 4
_FALSE_ALARMS = 0.01
_LEAST_SHARE = 0.03
_FEW = 0.25
"""Layers with other kernels are held against the largest group where they are at most so many."""
_CLOCK_NS = 16.0  # half of what kernel times are multiples of in the H100 recordings of tests/data

_TO_SIGMA = 1.4826
_QUARTILES_TO_SIGMA = 1 / 1.349
_MEDIAN_ERROR = math.sqrt(math.pi / 2)
_MAD_EFFICIENCY = 0.5
"""Degrees of freedom of a scatter by medians over those by squares, with its floors."""


@dataclass(frozen=True)
class EqualLayers:
    """Layers that are alike in a component, and their median over the steps in microseconds."""

    component: str
    layers: tuple[int, ...]
    us: tuple[float, ...]
    middle_us: float

    @classmethod
    def of(cls, component: str, layers: Sequence[int], ns: Floats) -> EqualLayers:
        """The layers of which each has a row of times in the steps."""
        us = np.median(ns, axis=1) / 1e3
        return cls(component, tuple(layers), tuple(us.tolist()), float(np.median(us)))


@dataclass(frozen=True)
class OutlierCell:
    """A layer that takes another time in a component than its like."""

    layer: int
    us: float
    like: EqualLayers
    scale: float  # by how many times the expected scatter it is away, below 0 where it is faster

    @property
    def component(self) -> str:
        """The component in which the layer is an outlier."""
        return self.like.component

    @property
    def share(self) -> float:
        """How much longer it takes, as a share of what its like take."""
        return self.us / self.like.middle_us - 1


@dataclass(frozen=True)
class LayerComparison:
    """What comparing the layers found."""

    outliers: tuple[OutlierCell, ...]  # those that take the most time more or less first
    groups: tuple[EqualLayers, ...]
    tested: int
    untested: int  # cells that were not, as they have too few like them
    threshold: float  # of `OutlierCell.scale` in the largest group
    steps: int  # that were looked at; too few where nothing could be tested
    enough_steps: bool


def compare_layers(cells: StepCells, makeup: Makeups, chosen: Flags) -> LayerComparison:
    """Finds the layers that are outliers in the chosen steps."""
    ns = of_steps(cells, chosen)
    places = zip(cells.layer.tolist(), cells.component.tolist(), strict=True)
    row = {(layer, COMPONENTS[component]): n for n, (layer, component) in enumerate(places)}
    steps = ns.shape[1]
    enough = steps >= _FEWEST_STEPS
    if not steps:
        return LayerComparison((), (), 0, 0, math.inf, 0, enough)
    pairs: list[_GroupPair] = []
    groups: list[EqualLayers] = []
    untested = 0
    for component, layer_groups in layers_by_kernels(makeup):
        times = [ns[[row[layer, component] for layer in layers]] for layers in layer_groups]
        component_groups = [
            EqualLayers.of(component, *pair) for pair in zip(layer_groups, times, strict=True)
        ]
        groups += component_groups
        for place, layers in enumerate(layer_groups):
            few = len(layers) < _FEWEST_LAYERS
            against = 0 if few and len(layers) <= _FEW * len(layer_groups[0]) else place
            if len(layer_groups[against]) < _FEWEST_LAYERS or not enough:
                untested += len(layers)
            else:
                pairs.append(
                    _GroupPair(
                        component_groups[against],
                        component_groups[place],
                        times[against],
                        times[place],
                    )
                )
    tested = sum(len(entry.group.layers) for entry in pairs)
    # The usual scatter of layers that are alike, as a share of their time.
    pooled = float(np.median([entry.mad / entry.level if entry.level else 0.0 for entry in pairs]
                             or [0.0]))  # fmt: skip
    outliers = [cell for entry in pairs for cell in entry.outliers(tested, pooled)]
    most = max((len(entry.like.layers) for entry in pairs), default=0)
    return LayerComparison(
        outliers=tuple(sorted(outliers, key=lambda cell: -abs(cell.us - cell.like.middle_us))),
        groups=tuple(groups),
        tested=tested,
        untested=untested,
        threshold=threshold(most, tested) if pairs else math.inf,
        steps=steps,
        enough_steps=enough,
    )


def threshold(layers: int, tested: int) -> float:
    """How many times the scatter a layer must be away from its like.

    Student's t at the chance of one false alarm in a hundred comparisons of all cells together
    (Bonferroni). tests/analyzers/views/test_odd.py counts the false alarms.
    """
    free = max(int(_MAD_EFFICIENCY * (layers - 1)), 2)
    return student_quantile(1 - _FALSE_ALARMS / 2 / max(tested, 1), free)


class _GroupPair:
    """A group held against one, mostly itself; all in nanoseconds."""

    def __init__(
        self, like: EqualLayers, group: EqualLayers, like_ns: Floats, own_ns: Floats
    ) -> None:
        self.like, self.group = like, group
        usual = np.median(like_ns, axis=0)
        base = np.median(like_ns - usual, axis=1)
        middle = float(np.median(base))
        # Scatter and median of the like.
        self.mad = float(np.median(np.abs(base - middle))) * _TO_SIGMA
        self.level = like.middle_us * 1e3
        low, difference, high = np.percentile(own_ns - usual, (25, 50, 75), axis=1)
        # Of each layer, how much more than its like it differs from their median, and the noise of
        # that over the steps.
        self.away = difference - middle
        sigma = (high - low) * _QUARTILES_TO_SIGMA
        self.error = sigma * _MEDIAN_ERROR / math.sqrt(own_ns.shape[1])

    def outliers(self, tested: int, pooled: float) -> Iterator[OutlierCell]:
        """The outliers, where `pooled` is the usual scatter of groups."""
        scale = np.maximum(self.error, max(self.mad, pooled * self.level, _CLOCK_NS))
        least = threshold(len(self.like.layers), tested)
        times = (self.away / scale).tolist()
        for layer, us, scales in zip(self.group.layers, self.group.us, times, strict=True):
            cell = OutlierCell(layer, us, self.like, scales)
            if abs(scales) > least and self.level and abs(cell.share) >= _LEAST_SHARE:
                yield cell


_SAME_CALLS = 0.1  # calls of a step that differ by less are the same


@dataclass(frozen=True)
class OutlierCause:
    """The kernel with the largest part of an outlier's difference, in mean steps."""

    name: int
    # Other where only one side calls it; calls where one side calls it more often; time where its
    # calls take another time.
    kind: Literal["other", "calls", "time"]
    us: float
    like_us: float  # in a step of its like, median over them
    calls: float
    like_calls: float


def cause_of(outlier: OutlierCell, makeups: Makeups) -> OutlierCause | None:
    """The kernel that makes the difference; None where mean steps do not show one."""
    layers = (outlier.layer, *(layer for layer in outlier.like.layers if layer != outlier.layer))
    parts = [
        {part.name: part for part in makeups.get((layer, outlier.component), ())}
        for layer in layers
    ]
    nothing = CellPart(-1, 0.0, 0.0)
    causes = []
    for name in {name for layer_parts in parts for name in layer_parts}:
        part, *peers = (layer_parts.get(name, nothing) for layer_parts in parts)
        calls = median(other.calls for other in peers)
        us = median(other.us for other in peers)
        kind: Literal["other", "calls", "time"] = "time"
        if abs(part.calls - calls) >= _SAME_CALLS:
            kind = "calls" if part.calls and calls else "other"
        if (part.us > us) == (outlier.share > 0):
            causes.append(OutlierCause(name, kind, part.us, us, part.calls, calls))
    return max(causes, key=lambda cause: abs(cause.us - cause.like_us), default=None)

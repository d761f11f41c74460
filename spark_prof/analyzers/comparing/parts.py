"""Takes the difference of typical steps apart: components and gaps, layers, kernels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from spark_prof.analyzers.comparing.model import KernelPart, LayerPart, Part
from spark_prof.analyzers.comparing.noise import (
    CALL_FLOOR_US,
    FLOORS,
    GAP_FLOOR,
    Change,
    Figure,
    change,
)
from spark_prof.analyzers.comparing.ran import Ran
from spark_prof.analyzers.comparing.typical import Typical, figures
from spark_prof.analyzers.model import KernelRow, Report
from spark_prof.analyzers.token_ledger.model import HOST, LAUNCH_GAPS
from spark_prof.vocabulary import COMPONENTS

__all__ = [
    "Taken",
    "conversions_change",
    "kernel_parts",
    "layer_parts",
    "step_parts",
    "typical_change",
    "whole_layers",
]

Int64s = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Taken:
    """One side's steps, to be taken apart.

    Attributes:
        typical: by size.
        report: of the side.
        stable: stable names, of both sides.
        spelled: one name of the trace for each stable name that this side has.
    """

    typical: Sequence[Typical]
    report: Report
    stable: Sequence[str]
    spelled: dict[int, str]

    @property
    def floor(self) -> float:
        """How much recordings of this kind differ from start to start, as a share."""
        return FLOORS[self.report.run.units]

    def figures(self, code: Callable[[Ran], Int64s], rows: int) -> list[Figure]:
        """The figure of each row of kernels.

        Args:
            code: of each kernel its row.
            rows: how many there are.
        """
        tables = [each.ran.table(code(each.ran), rows) for each in self.typical]
        return figures(self.typical, tables, lambda value: self.floors(value, code))

    def floors(self, value: Floats, code: Callable[[Ran], Int64s]) -> Floats:
        """How much figures of kernels differ from recording to recording, one each row."""
        moved = sum(
            each.weight * each.ran.calls(code(each.ran), len(value)) / each.divisor.mean()
            for each in self.typical
        )
        return np.hypot(self.floor * value, CALL_FLOOR_US * np.asarray(moved))

    def means(self, tabulate: Callable[[Ran], Floats]) -> Floats:
        """The mean of each row over typical steps, without its error."""
        found = sum(each.weight * each.middle.mean(tabulate(each.ran)) for each in self.typical)
        return np.asarray(found, np.float64)


def typical_change(a: Taken, b: Taken) -> Change:
    """From side a's typical step to side b's."""
    return change(_whole(a), _whole(b))


def step_parts(a: Taken, b: Taken) -> tuple[Part, ...]:
    """Components and gaps, which add up to the typical step; the slower one first."""
    names = (*COMPONENTS, LAUNCH_GAPS, HOST)
    changes = [change(*pair) for pair in zip(_step_figures(a), _step_figures(b), strict=True)]
    calls = [np.append(side.means(_calls_by_component), [0.0, 0.0]) for side in (a, b)]
    engines = [_engines(side) for side in (a, b)]
    found = [
        Part(
            name,
            each,
            float(calls[0][place]),
            float(calls[1][place]),
            engines[0].get(name, ()),
            engines[1].get(name, ()),
        )
        for place, (name, each) in enumerate(zip(names, changes, strict=True))
        if each.a or each.b
    ]
    return tuple(sorted(found, key=lambda part: -part.change.us))


def layer_parts(a: Taken, b: Taken) -> tuple[LayerPart, ...]:
    """Each component of each layer that either side ran; the slower one first."""
    layers, kinds = _layer_count(a, b), len(COMPONENTS)

    def cells(ran: Ran) -> Int64s:
        return (ran.layer + 1) * kinds + ran.component

    found = [
        LayerPart(layer - 1 if layer else None, COMPONENTS[kind], each)
        for place, each in enumerate(_changes(a, b, cells, layers * kinds))
        for layer, kind in [divmod(place, kinds)]
        if each.a or each.b
    ]
    return tuple(sorted(found, key=lambda part: -part.change.us))


def whole_layers(a: Taken, b: Taken) -> tuple[LayerPart, ...]:
    """Each layer with all of its components; the slower one first."""
    layers = _layer_count(a, b)
    found = [
        LayerPart(layer - 1, "", each)
        for layer, each in enumerate(_changes(a, b, lambda ran: ran.layer + 1, layers))
        if layer and (each.a or each.b)
    ]
    return tuple(sorted(found, key=lambda part: -part.change.us))


def conversions_change(a: Taken, b: Taken) -> Change:
    """What of a typical step goes to kernels that only convert formats."""
    return change(_conversions(a), _conversions(b))


def kernel_parts(a: Taken, b: Taken) -> tuple[KernelPart, ...]:
    """The kernels of each stable name in each component; the slower one first."""
    kinds = len(COMPONENTS)
    code = [
        np.unique(np.concatenate([_kernel_code(each.ran) for each in side.typical]))
        for side in (a, b)
    ]
    known = np.union1d(*code)

    def row(ran: Ran) -> Int64s:
        return np.searchsorted(known, _kernel_code(ran))

    changes = _changes(a, b, row, len(known))
    calls = [
        side.means(lambda ran: ran.table(row(ran), len(known), np.ones(len(ran.us))))
        for side in (a, b)
    ]
    layers = [_layers(side, known) for side in (a, b)]
    labels = [_labels(side.report) for side in (a, b)]
    found = []
    for place, each in enumerate(changes):
        name, kind = divmod(int(known[place]), kinds)
        component = COMPONENTS[kind]
        spelled = [side.spelled.get(name, "") for side in (a, b)]
        ran = [calls[0][place] > 0, calls[1][place] > 0]
        if not any(ran):
            continue
        engine = [
            labels[side].get((spelled[side], component), "") if ran[side] else "" for side in (0, 1)
        ]
        found.append(
            KernelPart(
                spelled[0] if ran[0] else spelled[1],
                component,
                each,
                float(calls[0][place]),
                float(calls[1][place]),
                layers[0][place],
                layers[1][place],
                *engine,
            )
        )
    return tuple(sorted(found, key=lambda part: -part.change.us))


def _conversions(side: Taken) -> Figure:
    converting = {row.name for row in side.report.kernels if row.conversion}
    flags = np.zeros(len(side.stable), bool)
    flags[[stable for stable, name in side.spelled.items() if name in converting]] = True

    # Row 1 is what converts, row 0 everything else.
    return side.figures(lambda ran: flags[ran.name].astype(np.int64), 2)[1]


def _layer_count(a: Taken, b: Taken) -> int:
    """Layers that occur, and one more for what has none."""
    return 2 + max(int(each.ran.layer.max(initial=-1)) for side in (a, b) for each in side.typical)


def _whole(side: Taken) -> Figure:
    lengths = [each.ran.length_us[None] for each in side.typical]
    return figures(side.typical, lengths, lambda value: side.floor * value)[0]


def _changes(a: Taken, b: Taken, code: Callable[[Ran], Int64s], rows: int) -> list[Change]:
    pairs = zip(a.figures(code, rows), b.figures(code, rows), strict=True)
    return [change(*pair) for pair in pairs]


def _step_figures(side: Taken) -> list[Figure]:
    """The components, then the gaps within steps and those between them."""

    def floors(value: Floats) -> Floats:
        kernels = side.floors(value[: len(COMPONENTS)], lambda ran: ran.component)
        return np.append(kernels, GAP_FLOOR * value[len(COMPONENTS) :])

    return figures(side.typical, [_by_component(each.ran) for each in side.typical], floors)


def _by_component(ran: Ran) -> Floats:
    busy = ran.table(ran.component, len(COMPONENTS))
    between = ran.table(np.zeros_like(ran.component), 1, ran.gap_us)
    host = ran.length_us - busy.sum(axis=0) - between
    return np.concatenate([busy, between, host])


def _calls_by_component(ran: Ran) -> Floats:
    return ran.table(ran.component, len(COMPONENTS), np.ones(len(ran.us)))


def _kernel_code(ran: Ran) -> Int64s:
    return ran.name * len(COMPONENTS) + ran.component


def _layers(side: Taken, known: Int64s) -> list[tuple[int, ...]]:
    """The layers in which each of the known kernels ran."""
    found: list[set[int]] = [set() for _ in known]
    for each in side.typical:
        rows = np.searchsorted(known, _kernel_code(each.ran))
        layers = int(each.ran.layer.max(initial=-1)) + 2
        present = np.bincount(rows * layers + each.ran.layer + 1, minlength=len(known) * layers)
        for row, layer in np.argwhere(present.reshape(-1, layers)[:, 1:]).tolist():
            found[row].add(layer)
    return [tuple(sorted(layers)) for layers in found]


def _label(row: KernelRow) -> str:
    words = [row.engine, row.precision or ""]
    if row.weights:
        words.append(f"from {row.weights} weights")
    return " ".join(filter(None, words))


def _labels(report: Report) -> dict[tuple[str, str], str]:
    return {(row.name, row.component): _label(row) for row in report.kernels}


def _engines(side: Taken) -> dict[str, tuple[tuple[str, float], ...]]:
    """On what each component's kernels of decode steps ran, as shares of their time."""
    sums: dict[str, dict[str, float]] = {}
    for row in side.report.kernels:
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

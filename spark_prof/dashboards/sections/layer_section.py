"""The decoder's layers set against each other.

A deep model's layers are mostly alike, so layers that run the same components in about the same
time share one row; of each kind of layers, the row furthest from the median layer is marked.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from statistics import fmean, median

from spark_prof.analyzers.model import Report
from spark_prof.dashboards.charts import Plot, layer_map
from spark_prof.dashboards.section import Column, Section
from spark_prof.dashboards.units import (
    MISSING,
    count,
    difference,
    figure,
    microseconds,
    share,
    shorten,
    spans,
)
from spark_prof.vocabulary import COMPONENTS

_MOST_ROWS = 12
_MANY_LAYERS = 150
_ALIKE = 0.05
"""Layers whose times differ by less share a row; a row further from the median is marked."""
_BLOCKS = frozenset({"attention", "ssm", "experts", "mlp"})
"""Layers with the same ones of these are of one kind; only such are held against one another."""
_WIDEST_LABEL = 28
_REST = "rest"
_FEW_PLACED = 0.9


@dataclass(frozen=True)
class LayerGroup:
    """Layers that share a row, and the mean time of one of them by component."""

    layers: tuple[int, ...]
    us: dict[str, float]

    @property
    def total_us(self) -> float:
        """Mean time of one layer."""
        return sum(self.us.values())


def by_layer(report: Report) -> dict[int | None, dict[str, float]]:
    """Sums microseconds by layer and component; layer None is outside the layers."""
    table: dict[int | None, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for row in report.layers:
        table[row.layer][row.component] += row.us
    return {layer: dict(parts) for layer, parts in table.items()}


def in_decoder_order(names: Iterable[str]) -> list[str]:
    """Sorts components as a decoder runs them; words that are not components come last."""
    known = {name: index for index, name in enumerate(COMPONENTS)}
    return sorted(set(names), key=lambda name: (known.get(name, len(known)), name))


def _groups(table: dict[int, dict[str, float]]) -> list[LayerGroup]:
    if len(table) <= _MOST_ROWS:
        return [LayerGroup((layer,), parts) for layer, parts in sorted(table.items())]
    kinds: dict[frozenset[str], list[int]] = defaultdict(list)
    for layer, parts in table.items():
        kinds[frozenset(parts)].append(layer)
    found: list[LayerGroup] = []
    for names, members in kinds.items():
        totals = {layer: sum(table[layer].values()) for layer in members}
        runs: list[list[int]] = []
        for layer in sorted(members, key=lambda layer: (totals[layer], layer)):
            if runs and totals[layer] <= totals[runs[-1][0]] * (1 + _ALIKE):
                runs[-1].append(layer)
            else:
                runs.append([layer])
        found += [
            LayerGroup(
                tuple(sorted(run)),
                {name: fmean(table[layer][name] for layer in run) for name in names},
            )
            for run in runs
        ]
    return sorted(found, key=lambda group: group.layers)


def _marks(groups: list[LayerGroup], table: dict[int, dict[str, float]]) -> list[str]:
    """Writes how far each row is from its kind's median layer, and marks the two that matter."""
    marks: list[str] = [MISSING] * len(groups)
    for kind in {_BLOCKS.intersection(group.us) for group in groups}:
        own = [i for i, group in enumerate(groups) if _BLOCKS.intersection(group.us) == kind]
        alike = (parts for parts in table.values() if _BLOCKS.intersection(parts) == kind)
        middle = median(sum(parts.values()) for parts in alike)
        if len(own) < 2 or not middle:
            continue
        offsets = {index: abs(groups[index].total_us / middle - 1) for index in own}
        for index in own:
            marks[index] = difference(groups[index].total_us, middle)
        furthest = max(own, key=offsets.__getitem__)
        marks[min(own, key=offsets.__getitem__)] = "median"
        if offsets[furthest] > _ALIKE:
            marks[furthest] = f"{marks[furthest]} (outlier)"
    return marks


def layers(report: Report, component_columns: int | None = None) -> Section:
    """Sets layers against components.

    Only the `component_columns` most expensive components get a column, the others share one.
    """
    table = by_layer(report)
    inside = {layer: parts for layer, parts in table.items() if layer is not None}
    groups = _groups(inside)
    sums: dict[str, float] = defaultdict(float)
    for parts in inside.values():
        for name, us in parts.items():
            sums[name] += us
    ranked = sorted(sums, key=lambda name: -sums[name])
    # One component alone is shown under its own name.
    few = component_columns if component_columns and len(ranked) > component_columns + 1 else None
    names, others = in_decoder_order(ranked[:few]), ranked[few:] if few else []
    largest = max((group.total_us for group in groups), default=0.0)
    unit, divisor, digits = ("ms", 1e3, 2) if largest >= 1e4 else ("us", 1.0, 1)

    def cells(parts: dict[str, float]) -> Iterator[str]:
        columns = [[name] for name in names] + [others] * bool(others) + [list(parts)]
        for column in columns:
            us = sum(parts.get(name, 0.0) for name in column)
            yield figure(us / divisor or None, f",.{digits}f")

    rows = tuple(
        (
            shorten(spans(group.layers), _WIDEST_LABEL),
            count(len(group.layers)) if len(group.layers) > 1 else "",
            *cells(group.us),
            mark,
        )
        for group, mark in zip(groups, _marks(groups, inside), strict=True)
    )
    columns = (
        Column("Layer"),
        Column("Layers", "number", optional=True),
        *(Column(name, "number") for name in [*names, *([_REST] if others else []), "Total"]),
        Column("To the median"),
    )
    # Sums without times come as one step that no engine ran.
    number = report.steps.count if report.books else 0
    steps = f", over all {count(number)} steps" if number > 1 else ", in one step" * number
    intro = [f"Time of one layer in {unit}{steps}."]
    if len(groups) < len(inside):
        intro.append(
            f"Layers with the same components and at most {100 * _ALIKE:.0f} % apart share a row: "
            "the figures are the mean of one."
        )
    if outside := sum(table.get(None, {}).values()):
        intro.append(f"Without a layer: {outside / divisor:,.{digits}f} {unit}.")
    if failed := report.failed("layers-"):
        intro += failed
    elif report.coverage.placed < _FEW_PLACED:
        why = ""
        if "CUDA graphs" in report.run.execution:
            why = ": kernels replayed by CUDA graphs carry no layer, so these rows are the steps "
            why += "that ran without a graph"
        intro.append(f"Only {share(report.coverage.placed)} of the time has a place here{why}.")
    if report.coverage.guessed:
        intro.append(f"The place of {share(report.coverage.guessed)} of the time is a guess.")
    return Section("layers", "Layers", columns, rows, tuple(intro))


def layer_heatmap(report: Report) -> Plot:
    """Draws time by layer and component; what lies outside the layers is left out."""
    table = {layer: parts for layer, parts in by_layer(report).items() if layer is not None}
    rows = sorted(table)
    names = in_decoder_order(name for parts in table.values() for name in parts)
    # A dash would be a figure; None leaves the cell of a component that a layer lacks empty.
    times = [[table[layer].get(name) for name in names] for layer in rows]
    return layer_map(
        "Time by layer and component",
        names,
        rows,
        times,
        # At most as high as a printed page leaves room for.
        height=150 + min(max(14 * len(rows), 80), 640),
        text=[[microseconds(us) for us in row] for row in times],
        # Where a row is a pixel or two, a gap would hide it.
        ygap=1 if len(rows) <= _MANY_LAYERS else 0,
    )

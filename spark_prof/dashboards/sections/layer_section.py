"""The decoder's layers set against each other.

A deep model's layers are mostly alike, so layers that run the same components in about the same
time share one row; of each kind of layers, the row furthest from the median layer is marked.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from statistics import fmean, median

from spark_prof.analyzers.attribution.order import CODES
from spark_prof.analyzers.layer_consistency import by_kind
from spark_prof.analyzers.model import Report
from spark_prof.analyzers.one_layer import LayerKernel, OneLayer
from spark_prof.dashboards import cells
from spark_prof.dashboards.charts import Plot, layer_map
from spark_prof.dashboards.section import Column, Document, Section, document, listed, table
from spark_prof.dashboards.units import (
    MISSING,
    count,
    counted,
    difference,
    figure,
    microseconds,
    share,
    shorten,
    spans,
)

_MOST_ROWS = 12
_MANY_LAYERS = 150
_SAME_SHARE = 0.05
"""Layers whose times differ by less share a row; a row further from the median is marked."""
_WIDEST_LABEL, _WIDEST_SPANS = 28, 60
_MOST_KERNELS = 40  # of one layer: with more it would be more than a screen
_REST = "rest"
_FEW_PLACED = 0.9


@dataclass(frozen=True)
class ShownLayers:
    """Layers that share a row, and the mean time of one of them by component."""

    layers: tuple[int, ...]
    us: dict[str, float]

    @property
    def total_us(self) -> float:
        """Mean time of one layer."""
        return sum(self.us.values())


def by_layer(report: Report) -> dict[int | None, dict[str, float]]:
    """Microseconds of a decode step by layer and component; of all steps where none decodes.

    Layer None is outside the layers.
    """
    decodes = _decodes(report)
    table: dict[int | None, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for row in report.layers:
        if us := row.decode_us_per_step if decodes else row.us:
            table[row.layer][row.component] += us
    return {layer: dict(parts) for layer, parts in table.items()}


def _decodes(report: Report) -> bool:
    return any(row.decode_us_per_step for row in report.layers)


def in_decoder_order(names: Iterable[str]) -> list[str]:
    """Sorts components as a decoder runs them; words that are not components come last."""
    return sorted(set(names), key=lambda name: (CODES.get(name, len(CODES)), name))


def _groups(table: dict[int, dict[str, float]]) -> list[ShownLayers]:
    if len(table) <= _MOST_ROWS:
        return [ShownLayers((layer,), parts) for layer, parts in sorted(table.items())]
    kinds: dict[frozenset[str], list[int]] = defaultdict(list)
    for layer, parts in table.items():
        kinds[frozenset(parts)].append(layer)
    groups: list[ShownLayers] = []
    for names, members in kinds.items():
        totals = {layer: sum(table[layer].values()) for layer in members}
        runs: list[list[int]] = []
        for layer in sorted(members, key=lambda layer: (totals[layer], layer)):
            if runs and totals[layer] <= totals[runs[-1][0]] * (1 + _SAME_SHARE):
                runs[-1].append(layer)
            else:
                runs.append([layer])
        groups += [
            ShownLayers(
                tuple(sorted(run)),
                {name: fmean(table[layer][name] for layer in run) for name in names},
            )
            for run in runs
        ]
    return sorted(groups, key=lambda group: group.layers)


def _marks(groups: list[ShownLayers], table: dict[int, dict[str, float]]) -> list[str]:
    """Writes how far each row is from its kind's median layer, and marks the two that matter."""
    marks: list[str] = [MISSING] * len(groups)
    for kind, middle in _kinds(table):
        indices = [i for i, group in enumerate(groups) if group.layers[0] in kind]
        if len(indices) < 2 or not middle:
            continue
        offsets = {index: abs(groups[index].total_us / middle - 1) for index in indices}
        for index in indices:
            marks[index] = difference(groups[index].total_us, middle)
        furthest = max(indices, key=offsets.__getitem__)
        marks[min(indices, key=offsets.__getitem__)] = "median"
        if offsets[furthest] > _SAME_SHARE:
            marks[furthest] = f"{marks[furthest]} (outlier)"
    return marks


def _kinds(table: Mapping[int, Mapping[str, float]]) -> Iterator[tuple[list[int], float]]:
    """The layers of each kind, and the time of their median."""
    for layers in by_kind(table):
        yield layers, median(sum(table[layer].values()) for layer in layers)


def _in_layers(report: Report) -> float:
    """The share of the kernel time that has a layer, with or without a component."""
    whole = sum(row.us for row in report.kernels)
    return sum(row.us for row in report.layers if row.layer is not None) / whole if whole else 0.0


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
    names, rest = in_decoder_order(ranked[:few]), ranked[few:] if few else []
    largest = max((group.total_us for group in groups), default=0.0)
    unit, divisor, digits = ("ms", 1e3, 2) if largest >= 1e4 else ("us", 1.0, 1)

    def cells(parts: dict[str, float]) -> Iterator[str]:
        columns = [[name] for name in names] + [rest] * bool(rest) + [list(parts)]
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
        *(Column(name, "number") for name in [*names, *([_REST] if rest else []), "Total"]),
        Column("To the median"),
    )
    # Sums without times come as one step that no engine ran.
    number = report.steps.count if report.accounts else 0
    steps = f", over all {count(number)} steps" if number > 1 else ", in one step" * number
    if _decodes(report):
        steps = f", in the typical one of {counted(report.steps.decode, 'decode step')}"
    intro = [f"Time of one layer in {unit}{steps}."]
    if len(groups) < len(inside):
        intro.append(
            f"Layers with the same components and at most {100 * _SAME_SHARE:.0f} % apart share a "
            "row: the figures are the mean of one."
        )
    if outside := sum(table.get(None, {}).values()):
        intro.append(f"Without a layer: {outside / divisor:,.{digits}f} {unit}.")
    return Section("layers", "Layers", columns, rows, (*intro, *_elsewhere(report)))


def _elsewhere(report: Report) -> Iterator[str]:
    """What the table of layers does not hold."""
    part_us: dict[str, float] = defaultdict(float)
    for row in report.layers:
        part_us[row.part] += row.us
    part_times = [f"{part} {microseconds(us)}" for part, us in sorted(part_us.items()) if part]
    if part_times:
        yield f"Other parts of the model, over all steps: {', '.join(part_times)}."
    if failed := report.failed("layers-"):
        yield from failed
    elif max(report.coverage.placed, _in_layers(report)) < _FEW_PLACED:
        why = ""
        if report.run.mode.graphs:
            why = ": kernels replayed by CUDA graphs carry no layer, so these rows are the steps "
            why += "that ran without a graph"
        yield f"Only {share(report.coverage.placed)} of the time has a place here{why}."
    if report.coverage.guessed:
        yield f"The place of {share(report.coverage.guessed)} of the time is a guess."


def furthest(report: Report) -> tuple[int, float, float] | None:
    """The layer furthest from the median of its kind, its time and that; None if all are near."""
    inside = {layer: parts for layer, parts in by_layer(report).items() if layer is not None}
    apart = (
        (layer, us, middle)
        for layers, middle in _kinds(inside)
        for layer in layers
        for us in [sum(inside[layer].values())]
        if abs(us - middle) > _SAME_SHARE * middle
    )
    return max(apart, key=lambda candidate: abs(candidate[1] - candidate[2]), default=None)


def one_layer(layer: OneLayer, title: str) -> Document:
    """One screen about a layer: its kernels, each beside its median in the layers like it."""
    kernels, rest = layer.kernels[:_MOST_KERNELS], layer.kernels[_MOST_KERNELS:]
    called = cells.called(row.name for row in kernels)
    columns = (
        cells.Text("Role", lambda row: shorten(row.role, _WIDEST_LABEL) or f"({row.component})"),
        cells.Name("Kernel", lambda row: called[row.name]),
        cells.Formatted("Calls", lambda row: figure(row.calls or None, ",.3g"), optional=True),
        cells.Time("This layer", "us"),
        cells.Time("Others", lambda row: row.others_us if layer.others else None),
        cells.Formatted("Difference", lambda row: _apart(row) if layer.others else None),
        cells.Text("Evidence", "basis", optional=True),
    )
    phase = "" if layer.phase == "unknown" else f"{layer.phase} "
    whole = f"the typical {phase}step" if layer.steps else "the recording"
    answer = f"Layer {layer.layer} takes {microseconds(layer.us)} of {whole}"
    intro = ["In brackets the component, where the role is not known."]
    if layer.others_us is not None:
        away = difference(layer.us, layer.others_us)
        answer += f", {away} to the median of the other {counted(len(layer.others), 'layer')} "
        answer += f"like it ({microseconds(layer.others_us)})"
        if most := max(layer.kernels, key=lambda row: abs(row.us - row.others_us), default=None):
            by = f"{'+' if most.us >= most.others_us else '-'}{microseconds(_off(most))}"
            answer += f"; most of that is {most.role or most.component}, {by}"
        intro += [f"Others: the median of layers {shorten(spans(layer.others), _WIDEST_SPANS)}."]
    if rest:
        intro += [f"{count(len(rest))} more take {microseconds(sum(row.us for row in rest))}."]
    named = f"Kernels of layer {layer.layer}"
    if layer.steps:
        named += f", {counted(layer.steps, f'{phase}step')}"
    section = table("layer", named, kernels, columns, intro)
    return document(title, (), (listed("answer", "", (f"{answer}.",)), section))


def _off(row: LayerKernel) -> float:
    return abs(row.us - row.others_us)


def _apart(row: LayerKernel) -> str:
    if not row.us:
        return "not here"
    return difference(row.us, row.others_us) if row.others_us else "only here"


def layer_heatmap(report: Report) -> Plot:
    """Draws time by layer and component; what lies outside the layers is left out."""
    table = {layer: parts for layer, parts in by_layer(report).items() if layer is not None}
    rows = sorted(table)
    names = in_decoder_order(name for parts in table.values() for name in parts)
    # A dash would be a figure; None leaves the cell of a component that a layer lacks empty.
    times = [[table[layer].get(name) for name in names] for layer in rows]
    of = " of a decode step" if _decodes(report) else ""
    return layer_map(
        f"Time{of} by layer and component",
        names,
        rows,
        times,
        # At most as high as a printed page leaves room for.
        height=150 + min(max(14 * len(rows), 80), 640),
        text=[[microseconds(us) for us in row] for row in times],
        # Where a row is a pixel or two, a gap would hide it.
        ygap=1 if len(rows) <= _MANY_LAYERS else 0,
    )

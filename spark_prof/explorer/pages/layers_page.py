"""The page of layers: a map of layers and components, and layers that differ from their like."""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd
import streamlit as st

from spark_prof.analyzers.classify.classifier import short_name
from spark_prof.analyzers.step_time import StepKind, kinds_of
from spark_prof.analyzers.views.layer_cells import (
    CellKernel,
    CellTimes,
    StepCells,
    cell_times,
    kernels_of_cell,
    step_cells,
)
from spark_prof.analyzers.views.layer_outliers import (
    LayerComparison,
    OutlierCause,
    cause_of,
    compare_layers,
    makeups,
)
from spark_prof.dashboards import about_cells
from spark_prof.dashboards.chart_cells import MOST_CELLS, NO_LAYER, Cell, cell_map, like_layers
from spark_prof.dashboards.units import clean, count, counted, microseconds
from spark_prof.datasets.prepared import Prepared
from spark_prof.explorer import links, state, widgets
from spark_prof.explorer.cache import BY_RECORDING
from spark_prof.explorer.state import Sources

_MEASURES = {
    "median": "Median over the steps",
    "p99": "99th percentile over the steps",
    "spread": "Spread over the steps, 10th to 90th percentile",
    "like": "Difference from layers like it",
}
_MAP, _KERNELS = "layers", "cell-kernels"
_OUTLIER = " \N{BLACK DIAMOND}"
_NONE = "-1"


@dataclass(frozen=True)
class _PhaseOutliers:
    """What was found in the steps of one kind."""

    times: CellTimes
    comparison: LayerComparison
    causes: tuple[OutlierCause | None, ...]


@st.cache_resource(show_spinner=False, max_entries=3, hash_funcs=BY_RECORDING)
def _cells(prepared: Prepared) -> StepCells:
    return step_cells(prepared.kernels, prepared.steps)


@st.cache_resource(show_spinner=False, max_entries=12, hash_funcs=BY_RECORDING)
def _compared(prepared: Prepared, kind: StepKind) -> _PhaseOutliers:
    chosen = kind.of(prepared.steps)
    cells = _cells(prepared)
    layer_makeups = makeups(prepared.kernels, prepared.steps, chosen)
    comparison = compare_layers(cells, layer_makeups, chosen)
    causes = tuple(cause_of(outlier, layer_makeups) for outlier in comparison.outliers)
    return _PhaseOutliers(cell_times(cells, chosen), comparison, causes)


def show(sources: Sources) -> None:
    prepared = sources.prepared
    if prepared.steps.empty:
        widgets.lines("This recording has no steps to look at.")
        return
    if point := links.clicked(_MAP):
        state.keep(layer=str(point[0]), component=str(point[1]))
    kinds = kinds_of(prepared.steps)
    words = tuple(kind.word for kind in kinds)
    kind = kinds[words.index(state.chosen("of", words[0], words))]
    compared = _compared(prepared, kind)
    chosen = _chosen(compared.times)
    rows = _rows(prepared, kind, chosen)
    for place in links.chosen_rows(_KERNELS):
        if chosen and place < len(rows):
            links.go("kernels", kernel=rows[place].name, component=chosen[1])
    left, right = st.columns(2)
    with left:
        widgets.choice("Steps", [_kind_label(kind) for kind in kinds], "of", values=words)
    with right:
        measures = list(_MEASURES)
        measure = measures[
            widgets.choice("Show", list(_MEASURES.values()), "show", values=measures)
        ]
    left, right = st.columns([3, 2])
    with left:
        _map(compared, measure, chosen)
        widgets.lines(*about_cells.placed_by(prepared.report))
    with right:
        _cell(prepared, compared.times, chosen, rows)
    _odd(compared, chosen, prepared.kernels.names)
    widgets.folded(
        "cells", "All cells as a table", lambda: widgets.table(_frame(compared.times), "cells")
    )


def _kind_label(kind: StepKind) -> str:
    batch = "" if kind.batch is None else f", {counted(kind.batch, 'request')}"
    return f"{kind.phase}{batch} ({counted(kind.steps, 'step')})"


def _chosen(times: CellTimes) -> tuple[int, str] | None:
    """The cell that the address names."""
    cells = {(str(layer), name) for layer, name in zip(times.layer, times.component, strict=True)}
    cell = (state.chosen("layer"), state.chosen("component"))
    return (int(cell[0]), cell[1]) if cell in cells else None


def _map(compared: _PhaseOutliers, measure: str, chosen: tuple[int, str] | None) -> None:
    cells = _drawn(compared, measure)
    title = f"{_MEASURES[measure]}, {counted(compared.times.steps, 'step')}"
    drawn = cell_map(cells, title, shares=measure == "like", chosen=chosen)
    widgets.figure(drawn, _MAP, selection=("points",))
    lines = []
    if inside := [cell for cell in cells if cell.layer >= 0]:
        most = max(inside, key=lambda cell: abs(cell.value))
        amount = f"{most.value:+.1%}" if measure == "like" else microseconds(most.value)
        lines.append(f"The largest in a layer: {amount} in layer {most.layer} {most.component}.")
    if any(cell.layer < 0 for cell in cells):
        lines.append(
            f"The row {NO_LAYER} is what belongs to no layer; the colours are scaled to the layers."
        )
    if compared.comparison.outliers:
        lines.append("A diamond marks a cell that differs from those like it.")
    if len(cells) > MOST_CELLS:
        lines.append(f"The first {count(MOST_CELLS)} of {count(len(cells))} cells are drawn.")
    widgets.lines(*lines)


def _drawn(compared: _PhaseOutliers, measure: str) -> list[Cell]:
    outliers = {(cell.layer, cell.component): cell.share for cell in compared.comparison.outliers}
    if measure == "like":
        # An outlier may run other kernels, and then lies in no group of its like.
        shares = _shares(compared.comparison) | outliers
        return [
            Cell(*pair, value, f"{value:+.1%}{_OUTLIER * (pair in outliers)}")
            for pair, value in sorted(shares.items())
        ]
    times = compared.times
    values = {"median": times.median_us, "p99": times.p99_us, "spread": times.spread_us}[measure]
    return [
        Cell(
            *pair,
            us,
            (f"{us:,.2f}" if us < 9.995 else f"{us:,.1f}") + _OUTLIER * (pair in outliers),
        )
        for pair, us in zip(
            zip(times.layer, times.component, strict=True), values.tolist(), strict=True
        )
    ]


def _shares(comparison: LayerComparison) -> dict[tuple[int, str], float]:
    """How far each cell is off the median of the cells like it, as a share."""
    return {
        (layer, group.component): us / group.middle_us - 1
        for group in comparison.groups
        if len(group.layers) > 1 and group.middle_us
        for layer, us in zip(group.layers, group.us, strict=True)
    }


def _rows(
    prepared: Prepared, kind: StepKind, chosen: tuple[int, str] | None
) -> tuple[CellKernel, ...]:
    """The kernels of the chosen cell."""
    if chosen is None:
        return ()
    return kernels_of_cell(prepared.kernels, prepared.steps, kind.of(prepared.steps), *chosen)


def _cell(
    prepared: Prepared,
    times: CellTimes,
    chosen: tuple[int, str] | None,
    rows: tuple[CellKernel, ...],
) -> None:
    st.subheader("Kernels of a cell", anchor=False)
    _choose_cell(times)
    if chosen is None:
        widgets.lines("Choose a cell: click on it in the map, or name its layer and component.")
        return
    layer, component = chosen
    where = "outside the layers" if layer < 0 else f"in layer {layer}"
    us = sum(row.us for row in rows)
    if not prepared.timed:
        widgets.lines("The recording has sums only: each call counts with their mean.")
    widgets.lines(
        f"{component} {where}: {counted(len(rows), 'kernel')}, {microseconds(us)} in a mean "
        "step. A click on a row opens its kernel."
    )
    frame = _kernel_frame(prepared, rows, component)
    full = [prepared.kernels.names[row.name] for row in rows]
    widgets.table(frame, _KERNELS, selectable=True, full=full)


def _choose_cell(times: CellTimes) -> None:
    layers = sorted(set(times.layer) - {-1})
    values = ["", *map(str, layers), *([_NONE] if -1 in times.layer else [])]
    names = list(dict.fromkeys(times.component))
    left, right = st.columns(2)
    with left:
        labels = ["", *(f"layer {layer}" for layer in layers), NO_LAYER][: len(values)]
        widgets.choice("Layer", labels, "layer", values=values)
    with right:
        widgets.choice("Component", ["", *names], "component", values=["", *names])


def _kernel_frame(prepared: Prepared, rows: tuple[CellKernel, ...], component: str) -> pd.DataFrame:
    names = prepared.kernels.names
    rows_by_name = {(row.name, row.component): row for row in prepared.report.kernels}
    labels = [rows_by_name.get((names[row.name], component)) for row in rows]
    return pd.DataFrame(
        {
            "us a step": [round(row.us, 2) for row in rows],
            "Calls a step": [round(row.calls, 2) for row in rows],
            "Kernel": [clean(short_name(names[row.name])) for row in rows],
            "Role": [clean(", ".join(label.roles)) if label else "" for label in labels],
            "Share, %": [round(100 * row.share, 1) for row in rows],
            "Median call, us": [round(row.median_us, 2) for row in rows],
            "p99 call, us": [round(row.p99_us, 2) for row in rows],
            "Engine": [label.engine if label else "" for label in labels],
            "Precision": [label.precision or "" if label else "" for label in labels],
            "Evidence": [label.evidence if label else "" for label in labels],
            "Conversion": [label.conversion or "" if label else "" for label in labels],
        }
    )


def _odd(compared: _PhaseOutliers, chosen: tuple[int, str] | None, names: tuple[str, ...]) -> None:
    section = about_cells.outlier_layers(compared.comparison, compared.causes, names)
    st.subheader(section.title, anchor=section.id)
    sentences = [
        about_cells.outlier_sentence(outlier, cause, names)
        for outlier, cause in zip(compared.comparison.outliers[:3], compared.causes, strict=False)
    ]
    widgets.lines(*section.intro, *sentences)
    if not section.rows:
        return
    picked = widgets.table(widgets.frame_of(section), section.id, selectable=True)
    outliers = compared.comparison.outliers
    here = next((cell for cell in outliers if (cell.layer, cell.component) == chosen), outliers[0])
    subject = outliers[picked[0]] if picked else here
    same = [cell for cell in outliers if cell.like == subject.like]
    own_us = {cell.layer: cell.us for cell in same}
    drawn = like_layers(subject.like, [cell.layer for cell in same], own_us)
    widgets.figure(drawn, "like-layers")


def _frame(times: CellTimes) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "Layer": [None if layer < 0 else layer for layer in times.layer],
            "Component": list(times.component),
            "Mean, us": times.mean_us.round(3),
            "Median, us": times.median_us.round(3),
            "p99, us": times.p99_us.round(3),
            "p10 to p90, us": times.spread_us.round(3),
        }
    ).astype({"Layer": "Int64"})

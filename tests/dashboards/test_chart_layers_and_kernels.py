"""Figures of layers and kernels: what they hold, what can be clicked, and how much is drawn."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from spark_prof.analyzers.views.kernel_calls import Histogram, LayerUse, Series
from spark_prof.analyzers.views.layer_outliers import EqualLayers
from spark_prof.dashboards.chart_calls import call_histogram, calls_by_layer, calls_over_steps
from spark_prof.dashboards.chart_cells import MOST_CELLS, NO_LAYER, Cell, cell_map, like_layers
from spark_prof.dashboards.charts import logarithmic_time_ticks, time_ticks
from spark_prof.dashboards.sections import roofline_section
from spark_prof.dashboards.sections.roofline_section import bytes_and_time, intensity, with_need
from tests.rows import each_row

from .sample import HOSTILE_NAME, SAMPLES

FULL = SAMPLES["mixture_of_experts"]
assert FULL.roofline
assert FULL.roofline.decode
PHASE = FULL.roofline.decode
_known = [row for row in with_need(PHASE.rows) if row.component == "experts" and row.operations]
SLOW, AT_FLOOR = (replace(row, name=name) for row, name in zip(_known, "sa", strict=False))
UNKNOWN = next(row for row in PHASE.rows if row.needed_bytes is None)
CEILINGS = FULL.roofline.ceilings
CELLS = [
    Cell(layer, name, 10.0 * layer + place, str(layer))
    for layer in (0, 1, 2)
    for place, name in enumerate(("norm", "experts"))
] + [Cell(-1, "lm_head", 400.0, "400")]


def test_the_map_has_every_cell_where_it_belongs() -> None:
    heat, points = cell_map(CELLS, "t").data
    rows = [*map(str, range(3)), NO_LAYER]
    assert list(heat.y) == rows
    for cell in CELLS:
        row = NO_LAYER if cell.layer < 0 else str(cell.layer)
        assert heat.z[rows.index(row)][list(heat.x).index(cell.component)] == cell.value
    assert heat.z[3][list(heat.x).index("norm")] is None
    chosen = [tuple(data) for data in points.customdata]
    assert sorted(chosen) == sorted((cell.layer, cell.component) for cell in CELLS)
    for (layer, component), x, y in zip(chosen, points.x, points.y, strict=True):
        assert (x, y) == (component, NO_LAYER if layer < 0 else str(layer))


def test_what_lies_in_no_layer_does_not_scale_the_colours() -> None:
    heat, _ = cell_map(CELLS, "t").data
    assert heat.zmax == 21.0
    heat, _ = cell_map([cell for cell in CELLS if cell.layer < 0], "t").data
    assert heat.zmax == 400.0


def test_a_chosen_cell_is_marked_and_one_that_is_not_there_is_not() -> None:
    assert len(cell_map(CELLS, "t", chosen=(1, "experts")).layout.shapes) == 1
    assert not cell_map(CELLS, "t", chosen=(7, "experts")).layout.shapes


def test_of_very_many_layers_some_are_drawn() -> None:
    many = [Cell(layer, "mlp", 1.0, "1") for layer in range(5000)]
    heat, points = cell_map(many, "t").data
    assert len(points.x) <= MOST_CELLS
    assert not heat.texttemplate


def test_no_cell_is_drawn_too() -> None:
    assert cell_map([], "t").data


def test_odd_layers_are_marked_among_their_like() -> None:
    group = EqualLayers("experts", (0, 1, 2, 3), (10.0, 11.0, 10.5, 19.0), 10.75)
    usual, odd = like_layers(group, [3, 9], {9: 30.0}).data
    assert list(usual.x) == [0, 1, 2]
    assert (list(odd.x), list(odd.y)) == ([3, 9], [19.0, 30.0])


def test_points_of_the_roofline_are_kernels_with_a_known_need() -> None:
    rows = (SLOW, AT_FLOOR, UNKNOWN)
    figure = bytes_and_time(rows, CEILINGS, {"s": 4})
    lines = [trace for trace in figure.data if trace.mode == "lines"]
    (points,) = (trace for trace in figure.data if trace.mode == "markers")
    assert sorted(points.x) == sorted(row.needed_bytes for row in (SLOW, AT_FLOOR))
    assert [4, "experts"] in [list(data) for data in points.customdata]
    assert len(lines) == (CEILINGS.reached is not None) + (CEILINGS.data_sheet is not None)
    for line, ceiling in zip(lines, (CEILINGS.reached, CEILINGS.data_sheet), strict=True):
        assert ceiling
        assert np.array(line.x) / np.array(line.y) * 1e6 == pytest.approx(ceiling.value)


def test_no_ceiling_is_drawn_that_nobody_knows() -> None:
    bare = replace(CEILINGS, reached=None, data_sheet=None, peaks=())
    for figure in (bytes_and_time([SLOW], bare, {}), intensity([SLOW], bare, {}, {})):
        assert [trace.mode for trace in figure.data] == ["markers"]


def test_intensity_is_operations_over_bytes_under_the_peak() -> None:
    precision = CEILINGS.peaks[0][0]
    figure = intensity([SLOW, UNKNOWN], CEILINGS, {("s", "experts"): precision}, {})
    (points,) = (trace for trace in figure.data if trace.mode == "markers")
    assert SLOW.needed_bytes
    assert list(points.x) == [pytest.approx(SLOW.operations / SLOW.needed_bytes)]
    assert list(points.y) == [pytest.approx(SLOW.operations / SLOW.us / 1e6)]
    peak = CEILINGS.peaks[0][1] / 1e12
    assert max(max(line.y) for line in figure.data if line.mode == "lines") <= peak * 1.001


def test_the_roofline_draws_no_more_than_it_can() -> None:
    many = [replace(SLOW, name=str(n), step_us=(1.0 + n) * SLOW.calls) for n in range(4000)]
    shown = with_need(many)
    assert len(shown) <= 1500
    assert shown[0].us == 4000.0


def test_hostile_names_become_no_tags() -> None:
    hostile = replace(SLOW, name=HOSTILE_NAME, what=HOSTILE_NAME, component=HOSTILE_NAME)
    group = EqualLayers(HOSTILE_NAME, (0,), (1.0,), 1.0)
    for figure in (
        bytes_and_time([hostile], CEILINGS, {}),
        intensity([hostile], CEILINGS, {}, {}),
        calls_by_layer([LayerUse(0, HOSTILE_NAME, 1, 1.0, 2.0)]),
        like_layers(group, [], {}),
    ):
        drawn = figure.to_dict()
        for trace in drawn["data"]:
            trace.pop("customdata", None)
        assert "<script" not in str(drawn)


def test_the_figures_of_calls_hold_what_they_are_given() -> None:
    edges, counts = np.array([1.0, 2.0, 4.0]), np.array([5, 1])
    for most, p99, last in ((9.0, 8.0, "2.00 us or longer"), (4.0, 3.5, "2.00 us to 4.00 us")):
        figure = call_histogram(Histogram(edges, counts, 1, 1.5, 2, p99, most), "mlp")
        (bars,) = figure.data
        assert (list(bars.x), list(bars.width), list(bars.y)) == ([1.5, 3], [1, 2], [5, 1])
        assert list(bars.text) == ["1.00 us to 2.00 us", last]
        # A level beyond the last bar stands at its end.
        assert [line.x0 for line in figure.layout.shapes] == [1.5, min(p99, 4.0)]
    ones = np.array([4.0, 5.0])
    *_, line = calls_over_steps(Series(np.array([0, 10]), 10, ones, ones - 1, ones + 1), "mlp").data
    assert (list(line.x), list(line.y)) == ([0, 10], [4.0, 5.0])
    uses = [LayerUse(-1, "mlp", 3, 9.0, 9.5), LayerUse(2, "mlp", 3, 4.0, 6.0)]
    (points,) = calls_by_layer(uses).data
    assert (list(points.x), list(points.y)) == ([2], [4.0])
    assert list(points.error_y.array) == [2.0]


def test_where_no_need_is_known_the_reason_stands() -> None:
    assert FULL.roofline
    phase = replace(PHASE, rows=(UNKNOWN,), floor_us=None, needed_bytes=0.0, streamed_bytes=0.0)
    bare = replace(FULL.roofline, phases=(phase,), weights=(), notes=("A note.",))
    report = replace(FULL, roofline=bare)
    assert roofline_section.floors(report).rows == (("A note.",),)
    assert roofline_section.streamed(report).rows == ()


UNITS_US = {"us": 1.0, "ms": 1e3, "s": 1e6}


@each_row(
    ("low", "high"),
    [(-0.2, 0.4), (0.0, 1.0), (1.0, 1.02), (2.5, 3.5), (2.9, 6.3), (0.3, 7.9), (3.0, 3.2)],
)
def test_ticks_of_a_logarithmic_time_axis_say_where_they_are(low: float, high: float) -> None:
    ticks: Any = logarithmic_time_ticks(low, high)
    places = ticks["tickvals"]
    assert len(places) >= 4
    assert low - 1e-4 <= min(places) < max(places) <= high + 1e-4
    assert ticks["range"] == [low, high]
    for place, text in zip(places, ticks["ticktext"], strict=True):
        number, unit = text.split()
        assert float(number) * UNITS_US[unit] == pytest.approx(10**place, rel=1e-3)
        assert unit == next(name for name in ("s", "ms", "us") if 10.0**place >= 0.9999 *
                            UNITS_US[name] or name == "us")  # fmt: skip


@each_row("most_us", [0.03, 1.0, 7.0, 49.0, 999.0, 1000.0, 1001.0, 123_456.0, 1e6, 7.7e7])
def test_ticks_of_a_time_axis_say_where_they_are(most_us: float) -> None:
    ticks: Any = time_ticks(most_us)
    places, texts = ticks["tickvals"], ticks["ticktext"]
    *_, unit = texts[-1].split()
    assert unit == next(name for name in ("s", "ms", "us") if most_us >= UNITS_US[name] or
                        name == "us")  # fmt: skip
    numbers = [float(text.removesuffix(f" {unit}").replace(",", "")) for text in texts]
    assert [number * UNITS_US[unit] for number in numbers] == pytest.approx(places)
    step = places[1]
    assert np.diff(places) == pytest.approx(step)
    assert places[0] == 0
    assert most_us - step < places[-1] <= most_us * (1 + 1e-9)
    assert 3 <= len(places) <= 6


@each_row("most_us", [0.0, -1.0, float("nan"), float("inf")])
def test_an_axis_without_times_begins_at_none(most_us: float) -> None:
    assert time_ticks(most_us)["ticktext"] == ["0 us"]

"""The figure of a time line draws what it is given, and says no foreign name unescaped."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from spark_prof.analyzers.views import timeline as module
from spark_prof.analyzers.views.timeline import RankColumns, Timeline, timeline
from spark_prof.analyzers.views.timeline_calls import call_at
from spark_prof.dashboards.chart_timeline import axis_unit, timeline_figure
from spark_prof.dashboards.chart_timeline_tables import (
    call_facts,
    component_table,
    gap_table,
    numbers,
    steps_table,
)
from spark_prof.dashboards.chart_timeline_texts import duration, instant
from spark_prof.dashboards.colors import COLORS
from tests.analyzers.views.timeline_kernels import ORIGIN, Row, columns, random_rows, steps
from tests.dashboards.sample import HOSTILE_NAME, SAMPLES
from tests.rows import each_row

HOSTILE = (
    "<b onload=alert(1)>",
    "a&amp;<a href='javascript:x'>",
    "\x1b[31mred\x1b[0m",
    "x" * 3000,
    HOSTILE_NAME,
)
RANGE = (90, 600)


@pytest.fixture(params=[0, 2000], ids=["bins", "kernels"])
def most(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(module, "MOST_KERNELS", request.param)
    monkeypatch.setattr(module, "_MOST_A_BIN", 100)
    found: int = request.param
    return found


@each_row("seed", range(8))
def test_every_mark_is_a_bar_in_its_lane_and_in_the_range(seed: int, most: int) -> None:
    drawn, bars = _drawn(random_rows(seed))
    assert len(bars) == len(drawn.marks)
    unit, ns = axis_unit(RANGE[1] - RANGE[0])
    assert unit == "us"
    length = (RANGE[1] - RANGE[0]) / ns
    for base, width, y, height, (place, lane, begin, end) in bars:
        assert -1e-9 <= base <= base + width <= length + 1 / ns
        assert abs(y - lane) + height / 2 < 0.5
        assert 0 < height < 0.841
        row = np.flatnonzero(
            (drawn.marks.lane == lane) & (drawn.marks.begin_ns == begin + ORIGIN)
            & (drawn.marks.end_ns == end + ORIGIN)
        )  # fmt: skip
        assert len(row)
        assert place in drawn.marks.kernel[row]


@each_row("seed", range(8))
def test_only_a_mark_that_is_busy_all_its_time_has_the_whole_height(seed: int, most: int) -> None:
    drawn, bars = _drawn(random_rows(seed))
    for _, _, _, height, (place, lane, begin, end) in bars:
        if drawn.lanes[lane].kind in ("steps", "layers"):
            continue
        (row, *_) = np.flatnonzero(
            (drawn.marks.lane == lane) & (drawn.marks.begin_ns == begin + ORIGIN)
            & (drawn.marks.end_ns == end + ORIGIN) & (drawn.marks.kernel == place)
        )  # fmt: skip
        low, high = max(begin, RANGE[0]), min(end, RANGE[1])
        if drawn.marks.busy_ns[row] < high - low:
            assert height < 0.84 * 0.95


def test_colours_are_those_of_the_components() -> None:
    figure = timeline_figure(*_timeline([(100, 200, 0, 8, 0, 0), (200, 300, 1, 5, 1, 0)]))
    used = {trace.marker.color for trace in figure.data}
    assert {COLORS["experts"], COLORS["attention"]} <= used
    assert "experts" in figure.layout.title.text
    assert COLORS["experts"] in figure.layout.title.text


def test_an_isolated_kernel_can_be_seen_however_short_it_is() -> None:
    rows = [(0, 10_000_000, 1, 3, 0, 0), (5_000_000, 5_000_001, 0, 3, 0, 0)]
    table = columns(rows)
    drawn = timeline(table, steps(), ORIGIN, ORIGIN + 10_000_000, 1000)
    bars = _bars(timeline_figure(drawn, {0: table}, ORIGIN))
    (short,) = [bar for bar in bars if bar[4][0] == 1]
    assert short[1] == pytest.approx(10_000_000 / 1000 / 1e3)
    # It is drawn wider than it is, and low for that.
    assert short[3] < 0.2


@each_row("name", HOSTILE)
def test_names_are_escaped_and_short(name: str, most: int) -> None:
    table = replace(columns(random_rows(1), names=(name,)), streams=(name, name, name))
    drawn = timeline(table, steps((0, 600)), ORIGIN + RANGE[0], ORIGIN + RANGE[1], 50)
    figure = timeline_figure(drawn, {0: table}, ORIGIN, chosen=0)
    texts = [str(t) for trace in figure.data for t in (*trace.hovertext, *trace.text)]
    texts += [str(t) for t in figure.layout.yaxis.ticktext]
    for text in texts:
        rest = text.replace("<b>", "").replace("</b>", "").replace("<br>", "")
        assert "<" not in rest
        assert "\x1b" not in rest
        assert len(text) < 400


def test_a_whole_page_of_marks_is_less_than_a_megabyte() -> None:
    generator = np.random.default_rng(3)
    start = np.cumsum(generator.integers(900, 4_000, 2_000))
    rows = [
        (int(s), int(s) + 700, int(k % 3), int(k % 17), int(k % 40), int(k // 100))
        for k, s in enumerate(start)
    ]
    names = [f"void at::native::some_kernel<{n}, {'float, ' * 40}>" for n in range(50)]
    table = columns(rows, names=names)
    end = ORIGIN + int(start[-1]) + 1_000
    drawn = timeline(table, steps((0, end - ORIGIN)), ORIGIN, end, 1000)
    assert drawn.exact
    assert len(drawn.marks) > 3_500
    assert len(timeline_figure(drawn, {0: table}, ORIGIN).to_json()) < 1_000_000


def test_a_kernel_of_another_rank_is_not_taken_for_one_of_this_rank() -> None:
    table = columns([(100, 200, 0, 8, 0, 0)])
    drawn = timeline(
        table, steps(), ORIGIN, ORIGIN + 400, 50, rank=0, others=[RankColumns(1, table)]
    )
    places = {
        (lane, place)
        for _, _, _, _, (place, lane, _, _) in _bars(
            timeline_figure(drawn, {0: table, 1: table}, ORIGIN)
        )
        if lane >= 3
    }
    assert places == {(3, 0), (6, -1)}


def test_the_same_in_numbers() -> None:
    rows = [(100, 200, 0, 8, 0, 0), (150, 300, 1, 5, 1, 0), (400, 500, 0, 5, 1, 0)]
    drawn, table = _timeline(rows)[:2]
    assert dict(numbers(drawn, 3)) == {
        "Range": "510 ns", "Something ran": "300 ns (58.8 %)", "Nothing ran": "210 ns (41.2 %)",
        "Kernels and copies": "3", "Steps": "3",
    }  # fmt: skip
    assert component_table(drawn).to_numpy().tolist() == [
        ["attention", "200 ns", "39.2 %"], ["experts", "100 ns", "19.6 %"]]  # fmt: skip
    gaps = gap_table(drawn, table[0], ORIGIN)
    assert gaps["Nothing ran for"].tolist() == ["100 ns", "100 ns", "10 ns"]
    assert gaps["From"].tolist() == ["0.300 us", "0.500 us", "0.090 us"]
    assert gaps["After"].tolist() == ["b", "a", "-"]
    assert gaps["Before"].tolist() == ["a", "-", "a"]


def test_the_facts_of_a_call() -> None:
    known = SAMPLES["mixture_of_experts"]
    kernel = known.kernels[0]
    component = list(COLORS).index(kernel.component)
    rows: list[Row] = [(0, 100, 0, component, 3, 7), (150, 400, 0, component, -1, -1)]
    table = columns(rows, names=(kernel.name,))
    facts = dict(call_facts(call_at(table, 1), table, known, ORIGIN))
    assert facts["Takes"] == "250 ns"
    assert facts["Among its calls"] == "the longest of 2; +42.9 % against their median 175 ns"
    assert facts["Begins"] == "0.150 us after the first kernel"
    assert facts["Layer"] == "outside the layers"
    assert facts["Step"] == "outside the analyzed steps"
    assert facts["Gap before it"] == "50 ns on its stream; the device idled 50 ns"
    assert facts["Launched as"].startswith("grid 1,1,1, block 32,1,1, 16 registers")
    assert facts["Engine"].startswith(kernel.engine)
    assert facts["By"] == kernel.evidence
    first = dict(call_facts(call_at(table, 0), table, known, ORIGIN))
    assert (first["Layer"], first["Step"], first["Gap before it"]) == ("3", "7", "-")


def test_steps_as_a_table_and_times_as_texts() -> None:
    table = steps((0, 1_000), (1_000, 3_500)).assign(
        kernels_us=0.5, gap_us=0.1, prefill_tokens=3, decode_tokens=1.0
    )
    assert steps_table(table).to_numpy().tolist() == [
        [0, "decode", "1.00 us", "0.50 us", "0.10 us", 4],
        [1, "decode", "2.50 us", "0.50 us", "0.10 us", 4],
    ]
    assert [instant(ns) for ns in (0, 1_234_567, -1_001)] == [
        "0.000 us",
        "1,234.567 us",
        "-1.001 us",
    ]
    assert [duration(ns) for ns in (0, 7, 999, 1_000)] == ["0 us", "7 ns", "999 ns", "1.00 us"]


def _timeline(rows: list[Row]):  # type: ignore[no-untyped-def]
    table = columns(rows, names=("a", "b"))
    drawn = timeline(table, steps((0, 300), (300, 700)), ORIGIN + RANGE[0], ORIGIN + RANGE[1], 50)
    return drawn, {0: table}, ORIGIN


def _drawn(rows: list[Row]) -> tuple[Timeline, list[tuple]]:
    drawn, table, origin = _timeline(rows)
    return drawn, _bars(timeline_figure(drawn, table, origin))


def _bars(figure) -> list[tuple]:  # type: ignore[no-untyped-def]
    json.loads(figure.to_json())
    return [
        bar
        for trace in figure.data
        for bar in zip(trace.base, trace.x, trace.y, trace.width, trace.customdata, strict=True)
    ]

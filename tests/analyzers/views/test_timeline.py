"""What is drawn of a range: nothing is lost, nothing is added, however many kernels there are."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from spark_prof.analyzers.views import timeline as module
from spark_prof.analyzers.views.timeline import MOST_MARKS, RankColumns, Timeline, timeline
from tests.rows import each_row

from .timeline_kernels import ORIGIN, Row, columns, moments, random_rows, steps

RANGES = [(0, 500), (90, 260), (100, 101), (240, 1600), (1390, 1500)]
NO_STEPS = steps()


@pytest.fixture(params=[0, 2000], ids=["bins", "kernels"])
def most(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Up to how many kernels each is a mark."""
    monkeypatch.setattr(module, "MOST_KERNELS", request.param)
    monkeypatch.setattr(module, "_MOST_A_BIN", 100)
    found: int = request.param
    return found


@each_row("between", RANGES)
@each_row("seed", range(15))
def test_the_marks_of_each_lane_add_up_to_what_ran(
    seed: int, between: tuple[int, int], most: int
) -> None:
    rows = random_rows(seed)
    found = _drawn(rows, between)
    for place, lane in enumerate(found.lanes):
        own = [row for row in rows if lane.kind != "stream" or lane.title == f"0/{row[2] + 7}"]
        if lane.kind == "layers":
            wanted = sum(row[4] >= 0 for row in moments(own, *between).values())
        elif lane.kind == "steps":
            wanted = 0
        else:
            wanted = len(moments(own, *between))
        assert found.marks.busy_ns[found.marks.lane == place].sum() == wanted, lane
    assert found.busy_ns == len(moments(rows, *between)) == sum(found.components)


@each_row("between", RANGES)
@each_row("seed", range(15))
def test_every_kernel_of_the_range_is_in_the_marks_of_its_stream(
    seed: int, between: tuple[int, int], most: int
) -> None:
    rows = random_rows(seed)
    found = _drawn(rows, between)
    for stream in range(3):
        running = [
            row
            for row in rows
            if row[2] == stream
            and (between[0] <= row[0] < between[1] or row[0] < between[0] < row[1])
        ]
        marks = _of_lane(found, f"0/{stream + 7}")
        assert marks.kernels.sum() == len(running)
        for start, end, *_ in running:
            begin = max(start, between[0]) + ORIGIN
            assert ((marks.begin_ns <= begin) & (marks.end_ns >= begin)).any()
            if end > start:
                assert ((marks.begin_ns <= begin) & (marks.end_ns > begin)).any()
    assert found.kernels == sum(
        between[0] <= row[0] < between[1] or row[0] < between[0] < row[1] for row in rows
    )


@each_row("between", RANGES)
@each_row("seed", range(15))
def test_nothing_is_drawn_where_nothing_ran(seed: int, between: tuple[int, int], most: int) -> None:
    rows = random_rows(seed)
    found = _drawn(rows, between, bins=between[1] - between[0])
    for place, lane in enumerate(found.lanes):
        if lane.kind not in ("components", "stream"):
            continue
        own = [row for row in rows if lane.kind != "stream" or lane.title == f"0/{row[2] + 7}"]
        marks = found.marks.taken(np.flatnonzero(found.marks.lane == place))
        drawn = set()
        for begin, end in zip(marks.begin_ns.tolist(), marks.end_ns.tolist(), strict=True):
            drawn |= set(range(max(begin - ORIGIN, between[0]), min(end - ORIGIN, between[1])))
        idle = drawn - set(moments(own, *between))
        # In bins of 1 ns a kernel of no length takes one; with kernels there are no such.
        timeless = {row[0] for row in own if row[0] == row[1]}
        assert idle <= (timeless if most == 0 else set())


@each_row("seed", range(15))
def test_a_bin_that_idles_partly_is_never_a_full_one(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST_KERNELS", 0)
    rows = random_rows(seed)
    found = _drawn(rows, (0, 500), bins=50)
    busy = moments(rows, 0, 500)
    marks = _of_lane(found, "components")
    full = marks.busy_ns == marks.end_ns - marks.begin_ns
    for place in range(len(marks)):
        whole = range(int(marks.begin_ns[place]) - ORIGIN, int(marks.end_ns[place]) - ORIGIN)
        assert full[place] == all(moment in busy for moment in whole)
        if not full[place]:
            # It was not made of full bins and others.
            bins = [range(m, m + 10) for m in whole[::10]]
            assert not any(all(m in busy for m in own) for own in bins)


def test_each_kernel_keeps_its_own_ends() -> None:
    rows = [(0, 10_000, 0, 3, 2, 0), (100, 160, 1, 5, 2, 0), (160, 160, 1, 5, 2, 0)]
    marks = _of_lane(_drawn(rows, (90, 200)), "0/7")
    assert (marks.begin_ns - ORIGIN).tolist() == [0]
    assert (marks.end_ns - ORIGIN).tolist() == [10_000]
    assert marks.busy_ns.tolist() == [110]
    marks = _of_lane(_drawn(rows, (90, 200)), "0/8")
    assert (marks.end_ns - marks.begin_ns).tolist() == [60, 0]
    assert marks.kernel.tolist() == [1, 2]


def test_layers_and_components_are_runs() -> None:
    rows = [
        (0, 10, 0, 2, 0, 0),
        (10, 20, 0, 2, 0, 0),
        (25, 30, 0, 5, 0, 0),
        (30, 40, 0, 2, 1, 0),
        (40, 50, 0, 12, -1, 0),
        (60, 70, 0, 2, 1, 1),
    ]
    found = _drawn(rows, (0, 100))
    layers, components = _of_lane(found, "layers"), _of_lane(found, "components")
    assert _spans(layers) == [(0, 30), (30, 40), (60, 70)]
    assert layers.first.tolist() == layers.last.tolist() == [0, 1, 1]
    assert layers.busy_ns.tolist() == [25, 10, 10]
    assert _spans(components) == [(0, 20), (25, 30), (30, 40), (40, 50), (60, 70)]
    assert components.component.tolist() == [2, 5, 2, 12, 2]
    assert components.kernels.tolist() == [2, 1, 1, 1, 1]


def test_layers_of_a_wide_range_are_told_from_the_first_to_the_last(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "MOST_KERNELS", 0)
    rows = [(10 * k, 10 * k + 9, 0, 2, k // 5 % 4, k // 20) for k in range(100)]
    marks = _of_lane(_drawn(rows, (0, 1000), bins=10), "layers")
    assert list(zip(marks.first.tolist(), marks.last.tolist(), strict=True)) == [
        (0, 1), (2, 3)] * 5  # fmt: skip


def test_steps_keep_their_windows_and_phases() -> None:
    table = steps((0, 100), (100, 180), (300, 400))
    table["phase"] = ["prefill", "decode", "decode"]
    marks = _of_lane(_drawn([(0, 10, 0, 0, 0, 0)], (50, 350), table=table), "steps")
    assert _spans(marks) == [(0, 100), (100, 180), (300, 400)]
    assert marks.first.tolist() == [0, 1, 2]
    assert marks.phase.tolist() == [0, 1, 1]
    assert marks.busy_ns.tolist() == [50, 80, 50]


def test_more_steps_than_bins_are_drawn_together() -> None:
    table = steps(*[(10 * k, 10 * k + 8) for k in range(100)])
    marks = _of_lane(_drawn([(0, 10, 0, 0, 0, 0)], (0, 1000), table=table, bins=10), "steps")
    assert marks.first.tolist() == list(range(0, 100, 10))
    assert marks.last.tolist() == list(range(9, 100, 10))
    assert marks.busy_ns.tolist() == [80] * 10


def test_no_more_marks_than_a_browser_draws() -> None:
    generator = np.random.default_rng(7)
    start = np.sort(generator.integers(0, 10_000_000, 60_000))
    rows = [
        (int(s), int(s) + int(n), int(stream), int(component), int(layer), 0)
        for s, n, stream, component, layer in zip(
            start,
            generator.integers(0, 400, 60_000),
            generator.integers(0, 40, 60_000),
            generator.integers(0, 17, 60_000),
            generator.integers(-1, 30, 60_000),
            strict=True,
        )
    ]
    table = columns(rows, streams=40)
    found = timeline(table, NO_STEPS, ORIGIN, ORIGIN + 10_000_000, 1000)
    assert 1000 < len(found.marks) <= MOST_MARKS
    assert len(found.lanes) == 43
    assert set(found.marks.lane.tolist()) == set(range(1, 43))
    own = found.marks.taken(np.flatnonzero(found.marks.lane >= 3))
    assert own.kernels.sum() == 60_000
    assert found.busy_ns == found.marks.busy_ns[found.marks.lane == 2].sum()


def test_other_ranks_are_lanes_on_the_clock_of_the_shown_one(most: int) -> None:
    rows = [(0, 50, 0, 3, 0, 0), (60, 90, 1, 5, 0, 0)]
    table = columns(rows)
    later = replace(table, start_ns=table.start_ns + 1000, end_ns=table.end_ns + 1000)
    other = RankColumns(3, later, ahead_ns=1000)
    found = timeline(table, NO_STEPS, ORIGIN, ORIGIN + 100, 100, rank=2, others=[other])
    assert [(lane.kind, lane.rank) for lane in found.lanes[-2:]] == [("stream", 2), ("rank", 3)]
    marks = _of_lane(found, "rank 3")
    drawn = {moment for begin, end in _spans(marks) for moment in range(begin, end)}
    assert drawn == set(range(50)) | set(range(60, 90))
    assert marks.busy_ns.sum() == 80


def test_a_range_without_kernels_has_its_lanes_and_one_gap() -> None:
    found = _drawn([(0, 10, 0, 0, 0, 0), (500, 510, 0, 0, 0, 0)], (100, 200))
    assert (len(found.marks), found.kernels, found.busy_ns) == (0, 0, 0)
    assert [lane.title for lane in found.lanes] == [
        "steps", "layers", "components", "0/7", "0/8", "0/9"]  # fmt: skip
    (gap,) = found.gaps
    assert (gap.length_ns, gap.before, gap.after) == (100, 0, 1)


def _drawn(
    rows: list[Row], between: tuple[int, int], *, bins: int = 20, table=NO_STEPS
) -> Timeline:  # type: ignore[no-untyped-def]
    return timeline(columns(rows), table, ORIGIN + between[0], ORIGIN + between[1], bins)


def _of_lane(found: Timeline, title: str):  # type: ignore[no-untyped-def]
    (place,) = [place for place, lane in enumerate(found.lanes) if lane.title == title]
    return found.marks.taken(np.flatnonzero(found.marks.lane == place))


def _spans(marks) -> list[tuple[int, int]]:  # type: ignore[no-untyped-def]
    return list(
        zip((marks.begin_ns - ORIGIN).tolist(), (marks.end_ns - ORIGIN).tolist(), strict=True)
    )

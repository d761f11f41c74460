"""Time by bin against a brute force that looks at every nanosecond."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from spark_prof.analyzers.views import lanes
from spark_prof.analyzers.views.lanes import bin_edges, kernels_between
from spark_prof.analyzers.views.lanes_scan import GAPS, scan
from tests.rows import each_row

from .timeline_kernels import ORIGIN, Row, columns, moments, random_rows

RANGES = [(0, 500), (90, 260), (100, 101), (240, 1600), (1390, 1500)]


@pytest.fixture(params=[1 << 16, 7], ids=["one block", "many blocks"], autouse=True)
def block(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lanes, "_BLOCK", request.param)


@each_row("between", RANGES)
@each_row("seed", range(12))
def test_kernels_between_are_those_that_run_or_begin_there(
    seed: int, between: tuple[int, int]
) -> None:
    begin, end = between
    found = columns(random_rows(seed))
    got = kernels_between(found, ORIGIN + begin, ORIGIN + end).places().tolist()
    start, finish = found.start_ns - ORIGIN, found.end_ns - ORIGIN
    assert got == [
        place
        for place, (s, e) in enumerate(zip(start.tolist(), finish.tolist(), strict=True))
        if begin <= s < end or s < begin < e
    ]


@each_row("bins", [1, 2, 7, 40])
@each_row("between", RANGES)
@each_row("seed", range(12))
def test_each_bin_holds_what_ran_in_it(seed: int, between: tuple[int, int], bins: int) -> None:
    rows = random_rows(seed)
    found, wanted = _scanned(rows, between, bins), _wanted(rows, between, bins)
    edges = found.device.edges
    assert np.diff(edges).min() > 0
    assert (int(edges[0]), int(edges[-1])) == (ORIGIN + between[0], ORIGIN + between[1])
    assert _cells(found.device.busy_ns) == wanted["component"]
    assert _cells(found.layers.busy_ns) == wanted["layer"]
    for stream in range(3):
        own = [row for row in rows if row[2] == stream]
        cells = _wanted(own, between, bins)["component"]
        if stream in found.streams:
            assert _cells(found.streams[stream].busy_ns) == cells
        else:
            assert not cells


@each_row("between", RANGES)
@each_row("seed", range(12))
def test_each_kernel_is_counted_once_and_none_is_lost_by_halving(
    seed: int, between: tuple[int, int]
) -> None:
    found = _scanned(random_rows(seed), between, 40)
    kernels = kernels_between(columns(random_rows(seed)), ORIGIN + between[0], ORIGIN + between[1])
    bins = found.device
    while True:
        assert bins.kernels.sum() == len(kernels)
        assert sum(int(lane.kernels.sum()) for lane in found.streams.values()) == len(kernels)
        assert ((bins.first >= 0) == (bins.kernels > 0)).all()
        assert (found.device.busy_ns.sum(axis=0) == bins.busy_ns.sum(axis=0)).all()
        if len(bins.kernels) == 1:
            break
        bins = bins.halved()
        assert len(bins.edges) == len(bins.kernels) + 1
    assert bins.first[0] == (kernels.places()[0] if len(kernels) else -1)


@each_row("between", RANGES)
@each_row("seed", range(12))
def test_the_longest_gaps_are_the_idle_time(seed: int, between: tuple[int, int]) -> None:
    rows = random_rows(seed)
    found, table = _scanned(rows, between, 5), columns(rows)
    busy = moments(rows, *between)
    idle = [moment for moment in range(*between) if moment not in busy]
    starts = [moment for moment in idle if moment - 1 not in idle]
    assert len(starts) <= GAPS, "the test would have to know which are told"
    told = sorted((gap.begin_ns - ORIGIN, gap.end_ns - ORIGIN) for gap in found.gaps)
    # A kernel of no length parts a gap in two.
    assert [m for begin, end in told for m in range(begin, end)] == idle
    lengths = [gap.length_ns for gap in found.gaps]
    assert lengths == sorted(lengths, reverse=True)
    for gap in found.gaps:
        earlier = table.start_ns < gap.end_ns
        earlier &= table.end_ns <= gap.begin_ns
        if gap.before >= 0:
            assert table.end_ns[gap.before] == table.end_ns[earlier].max()
        else:
            assert not earlier.any()
        if gap.after >= 0:
            assert table.start_ns[gap.after] >= gap.end_ns
            assert gap.after == np.searchsorted(table.start_ns, gap.end_ns) or (
                table.start_ns[gap.after] == gap.end_ns
            )
        else:
            assert not (table.start_ns >= gap.end_ns).any()


def test_a_bin_is_at_least_a_nanosecond_long_and_a_long_range_does_not_overflow() -> None:
    assert bin_edges(5, 8, 1000).tolist() == [5, 6, 7, 8]
    edges = bin_edges(-(1 << 62), 1 << 62, 1000)
    assert (np.diff(edges[1:-1]) > 0).all()


def test_many_layers_are_drawn_as_the_last_one() -> None:
    rows = [(0, 10, 0, 0, 30_000, 0), (10, 20, 0, 0, 3, 0)]
    found = _scanned(rows, (0, 20), 2)
    assert found.layers.busy_ns.shape == (2, 514)
    assert found.layers.busy_ns[0, 513] == found.layers.busy_ns[1, 4] == 10


def _scanned(rows: list[Row], between: tuple[int, int], bins: int):  # type: ignore[no-untyped-def]
    begin, end = ORIGIN + between[0], ORIGIN + between[1]
    table = columns(rows)
    return scan(table, kernels_between(table, begin, end), begin, end, bins)


def _cells(busy: np.ndarray) -> dict[tuple[int, int], int]:
    rows, kinds = np.nonzero(busy)
    return {
        (int(row), int(kind)): int(busy[row, kind])
        for row, kind in zip(rows, kinds, strict=True)
    }  # fmt: skip


def _wanted(
    rows: list[Row], between: tuple[int, int], bins: int
) -> dict[str, dict[tuple[int, int], int]]:
    edges = bin_edges(*between, bins)
    found: dict[str, Counter[tuple[int, int]]] = {"component": Counter(), "layer": Counter()}
    for moment, row in moments(rows, *between).items():
        place = int(np.searchsorted(edges, moment, side="right")) - 1
        found["component"][place, row[3]] += 1
        found["layer"][place, row[4] + 1] += 1
    return {name: dict(counter) for name, counter in found.items()}

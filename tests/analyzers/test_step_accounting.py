"""Parts of steps add up: kernels + copies - overlap + gap + residual = step, in every step."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pandas as pd
import pytest

from spark_prof.analyzers.lookup import BLOCK
from spark_prof.analyzers.step_accounting import (
    Spread,
    covered_in,
    length_by_group,
    spread,
    step_times,
    union_by_group,
)
from tests.rows import each_row
from tests.support import ORIGIN

FAR = 1_800_000_000_000_000_001


def _random_intervals(seed: int) -> list[tuple[int, int, int]]:
    chosen = random.Random(seed)
    found = []
    for _ in range(chosen.randrange(1, 40)):
        start = chosen.randrange(150)
        found.append((start, start + chosen.choice([0, 1, 5, 60]), chosen.randrange(-1, 5)))
    return found


@each_row("origin", [0, FAR])
@each_row("seed", range(25))
def test_union_by_group(seed: int, origin: int) -> None:
    intervals = _random_intervals(seed)
    start, end, group = np.array(intervals, np.int64).T
    found = union_by_group(start + origin, end + origin, group, 6)
    # The one that began first has the moment, of equal ones the first of the list.
    owners: dict[int, int] = {}
    intervals = [interval for interval in intervals if interval[2] >= 0]  # below 0 is none
    for begin, finish, own in sorted(intervals, key=lambda interval: interval[0]):
        for moment in range(begin, finish):
            owners.setdefault(moment, own)
    wanted = [sum(own == number for own in owners.values()) for number in range(6)]
    assert found.tolist() == wanted
    assert found.sum() == len({m for begin, finish, _ in intervals for m in range(begin, finish)})
    assert found.dtype == np.int64


@each_row("origin", [0, FAR])
@each_row("seed", range(25))
def test_covered_in(seed: int, origin: int) -> None:
    intervals = _random_intervals(seed)
    start, end, _ = np.array(intervals, np.int64).T
    moments = {moment for begin, finish, _ in intervals for moment in range(begin, finish)}
    windows = [(begin, begin + length) for begin in range(-10, 220, 7) for length in (0, 1, 30)]
    begin, finish = np.array(windows, np.int64).T
    found = covered_in(start + origin, end + origin, begin + origin, finish + origin)
    assert found.tolist() == [len(moments & set(range(*window))) for window in windows]


def test_many_rows_are_added_up_as_a_few_at_a_time() -> None:
    chosen = np.random.default_rng(5)
    rows, groups = 2 * BLOCK + 1000, 3000
    start = np.sort(chosen.integers(0, 40 * rows, rows)) + FAR
    end = start + chosen.choice([0, 3, 30, 300, 100_000], rows, p=[0.2, 0.3, 0.3, 0.19, 0.01])
    group = np.sort(chosen.integers(-1, groups, rows)).astype(np.int32)
    mixed = chosen.random(rows) < 0.01
    group[mixed] = chosen.integers(-1, groups, mixed.sum())
    counted = group >= 0
    reached = np.maximum.accumulate(np.where(counted, end, start[0]))
    added = np.maximum(end - np.maximum(start, np.append(start[:1], reached[:-1])), 0)
    for found, values in (
        (union_by_group(start, end, group, groups), added),
        (length_by_group(start, end, group, groups), end - start),
    ):
        wanted = np.bincount(group[counted], values[counted], groups)
        assert found.tolist() == wanted.tolist()
    edges = np.sort(chosen.integers(start[0] - 10, end.max() + 10, 1000))
    opens = np.append(True, start[1:] > np.maximum.accumulate(end)[:-1])
    first = np.flatnonzero(opens)
    merged = start[first], np.maximum.reduceat(end, first)
    wanted = [
        int(np.maximum(np.minimum(merged[1], finish) - np.maximum(merged[0], begin), 0).sum())
        for begin, finish in pairwise(edges)
    ]
    assert covered_in(start, end, edges[:-1], edges[1:]).tolist() == wanted


def test_groups_far_apart_and_times_that_cannot_be_are_no_crash() -> None:
    # A million steps in ten hours.
    steps = np.arange(0, 1_000_000, 1000)
    start = FAR + steps * 36_000_000
    assert set(union_by_group(start, start + 7, steps, 1_000_000)[steps]) == {7}
    start, end = np.array([0, 0, 10]), np.array([3, 2**63 - 1, 12])
    assert union_by_group(start, end, np.arange(3), 3)[0] == 3


def windows(*spans: tuple[int, int], phases: str = "", engine: float = 0.0) -> pd.DataFrame:
    """Steps with these windows; the phases by their first letter, decode if left out."""
    words = {"p": "prefill", "d": "decode", "m": "mixed"}
    frame = pd.DataFrame(spans, columns=["begin_ns", "finish_ns"]).astype("int64") + ORIGIN
    phase = [words[letter] for letter in phases or "d" * len(spans)]
    return frame.assign(phase=phase, engine_ns=engine)


def kernels(*rows: tuple[int, int, int], copies: Sequence[int] = ()) -> pd.DataFrame:
    """Kernels by step, start and end; those with the numbers in `copies` are copies."""
    frame = pd.DataFrame(rows, columns=["step", "start_ns", "end_ns"]).astype("int64")
    kinds = [("memcpy", "memset")[n % 2] if n in copies else "kernel" for n in range(len(rows))]
    return frame.assign(
        start_ns=frame["start_ns"] + ORIGIN,
        end_ns=frame["end_ns"] + ORIGIN,
        kind=pd.Categorical(kinds),
    )


def entries(found: pd.DataFrame, *more: str) -> list[tuple[float, ...]]:
    """kernels, overlap, gap and residual of each step, in ns; then what else is asked for."""
    columns = ["kernels_us", "overlap_us", "gap_us", "residual_us", *more]
    return [tuple(row) for row in (found[columns] * 1000).round(6).to_numpy().tolist()]


@each_row(
    ("rows", "wanted"),
    [
        pytest.param([], (0, 0, 100, 0), id="nothing ran"),
        pytest.param([(0, 0, 100)], (100, 0, 0, 0), id="one kernel all the time"),
        pytest.param([(0, 10, 40), (0, 60, 90)], (60, 0, 40, 0), id="gaps around two"),
        pytest.param([(0, 10, 60), (0, 40, 90)], (100, 20, 20, 0), id="two streams overlap"),
        pytest.param([(0, 10, 90), (0, 20, 30)], (90, 10, 20, 0), id="one inside another"),
        pytest.param([(-1, 10, 40)], (0, 0, 70, 30), id="of no step inside the window"),
        pytest.param([(0, 80, 130)], (50, 0, 80, -30), id="its own outside the window"),
        pytest.param([(0, 10, 40), (1, 20, 60)], (30, 0, 50, 20), id="of another step"),
        pytest.param([(7, 10, 40)], (0, 0, 70, 30), id="of a step that is not there"),
    ],
)
def test_the_times_of_one_step(rows: list[tuple[int, int, int]], wanted: tuple[float, ...]) -> None:
    assert entries(step_times(windows((0, 100), (100, 200)), kernels(*rows)))[0] == wanted


@each_row("seed", range(20))
def test_the_parts_add_up(seed: int) -> None:
    chosen = random.Random(seed)
    cuts = sorted(chosen.sample(range(2000), 12))
    spans = list(pairwise(cuts))
    rows = []
    for _ in range(chosen.randrange(80)):
        start = chosen.randrange(-50, 2050)
        rows.append((chosen.randrange(-1, 12), start, start + chosen.randrange(120)))
    copies = [number for number in range(len(rows)) if chosen.random() < 0.3]
    found = step_times(windows(*spans), kernels(*rows, copies=copies))
    total = found["kernels_us"] + found["copies_us"] - found["overlap_us"]
    total += found["gap_us"] + found["residual_us"]
    assert (total * 1000).round(6).tolist() == [finish - begin for begin, finish in spans]
    assert (found[["kernels_us", "copies_us", "overlap_us", "gap_us"]] >= 0).all(axis=None)
    assert (found["union_us"] <= found["kernels_us"] + 1e-9).all()
    alone = step_times(
        windows(*spans), kernels(*(r for n, r in enumerate(rows) if n not in copies))
    )
    assert found["union_us"].tolist() == alone["union_us"].tolist()


def test_spread() -> None:
    assert spread(pd.Series([1.0, 3.0, float("nan"), 2.0])) == Spread(2.0, pytest.approx(2.98), 2.0)
    assert spread(pd.Series([float("nan")])) is None
    assert spread(pd.Series([], dtype=float)) is None

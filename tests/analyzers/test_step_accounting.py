"""Parts of steps add up: kernels + copies - overlap + gap + residual = step, in every step."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pandas as pd
import pytest

from spark_prof.analyzers import lookup, step_accounting
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


def few_at_a_time(patch: pytest.MonkeyPatch, seed: int) -> None:
    """Blocks of five rows for every second seed."""
    for module in (lookup, step_accounting) if seed % 2 else ():
        patch.setattr(module, "BLOCK", 5)


@each_row("origin", [0, FAR])
@each_row("seed", range(25))
def test_union_by_group(seed: int, origin: int, monkeypatch: pytest.MonkeyPatch) -> None:
    few_at_a_time(monkeypatch, seed)
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
    lengths = np.bincount(group[group >= 0], (end - start)[group >= 0], 6)
    assert length_by_group(start + origin, end + origin, group, 6).tolist() == lengths.tolist()


@each_row("origin", [0, FAR])
@each_row("seed", range(25))
def test_covered_in(seed: int, origin: int, monkeypatch: pytest.MonkeyPatch) -> None:
    few_at_a_time(monkeypatch, seed)
    intervals = _random_intervals(seed)
    start, end, _ = np.array(intervals, np.int64).T
    moments = {moment for begin, finish, _ in intervals for moment in range(begin, finish)}
    windows = [(begin, begin + length) for begin in range(-10, 220, 7) for length in (0, 1, 30)]
    begin, finish = np.array(windows, np.int64).T
    found = covered_in(start + origin, end + origin, begin + origin, finish + origin)
    assert found.tolist() == [len(moments & set(range(*window))) for window in windows]


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

"""Attributed against a brute force that looks at every nanosecond."""

from __future__ import annotations

import random
from collections import Counter
from itertools import pairwise

import numpy as np
import pandas as pd

from spark_prof.analyzers.instants import (
    Attributed,
    RunWork,
    attribute,
    with_own_starts,
)
from tests.rows import each_row

FAR = 1_800_000_000_000_000_001
KINDS = 3

Row = tuple[int, int, int, bool]
Span = tuple[int, int]


def charges(rows: list[Row], windows: list[Span], origin: int = 0) -> Attributed:
    """What `attribute` says of rows of start, end, kind and whether it is a kernel."""
    rows = sorted(rows, key=lambda row: row[0])
    start, end, kind = (np.array([row[n] for row in rows], np.int64) for n in range(3))
    work = RunWork(start + origin, end + origin, kind, np.array([row[3] for row in rows], bool))
    begin, finish = (np.array([window[n] for window in windows], np.int64) for n in range(2))
    return attribute(work, begin + origin, finish + origin, KINDS)[0]


def by_moment(rows: list[Row], windows: list[Span]) -> Attributed:
    """The same, nanosecond by nanosecond."""
    shape = (len(windows), KINDS)
    wanted = Attributed(
        *(np.zeros(shape) for _ in range(3)), *(np.zeros(len(windows)) for _ in "ab")
    )
    for number, (begin, finish) in enumerate(windows):
        inside = sorted(
            (row for row in rows if row[3] and begin <= row[0] < finish), key=lambda row: row[0]
        )
        opens, closes = (inside[0][0], inside[-1][0]) if inside else (finish, finish)
        reaching = [row for row in rows if row[0] < begin < row[1]]
        if reaching and inside:
            opens = begin
        for moment in range(begin, finish):
            running = Counter(kind for start, end, kind, _ in rows if start <= moment < end)
            count = running.total()
            for kind, own in running.items():
                wanted.kernel_time[number, kind] += own
                wanted.attributed[number, kind] += own / count
                wanted.exclusive[number, kind] += count == 1
            if not count:
                idle = wanted.between if opens <= moment < closes else wanted.outside
                idle[number] += 1
    return wanted


def assert_same(found: Attributed, wanted: Attributed) -> None:
    for name, values in vars(wanted).items():
        np.testing.assert_allclose(getattr(found, name), values, atol=1e-6, err_msg=name)


def some_rows(chosen: random.Random, most: int) -> list[Row]:
    rows = []
    for _ in range(chosen.randrange(most)):
        start = chosen.randrange(-20, 160)
        length = chosen.choice([0, 1, 3, 10, 70])
        rows.append((start, start + length, chosen.randrange(KINDS), chosen.random() < 0.8))
    return rows


def some_windows(chosen: random.Random) -> list[Span]:
    cuts = sorted(chosen.choices(range(150), k=chosen.randrange(2, 9)))
    kept = [window for window in pairwise(cuts) if chosen.random() < 0.8]
    return kept or [(0, 150)]


@each_row("origin", [0, FAR])
@each_row("seed", range(60))
def test_every_nanosecond_is_attributed(seed: int, origin: int) -> None:
    chosen = random.Random(seed)
    rows, windows = some_rows(chosen, 4 if seed % 3 else 40), some_windows(chosen)
    assert_same(charges(rows, windows, origin), by_moment(rows, windows))


@each_row("origin", [0, FAR])
@each_row("seed", range(60))
def test_each_row_has_its_part_of_every_window(seed: int, origin: int) -> None:
    chosen = random.Random(seed)
    rows, windows = some_rows(chosen, 4 if seed % 3 else 40), some_windows(chosen)
    rows.sort(key=lambda row: row[0])
    columns = (np.array([row[n] for row in rows], np.int64) for n in range(3))
    start, end, kind = columns
    work = RunWork(start + origin, end + origin, kind, np.array([row[3] for row in rows], bool))
    begin, finish = (np.array([window[n] for window in windows], np.int64) for n in range(2))
    times, owned = attribute(work, begin + origin, finish + origin, KINDS)
    weights = np.array([chosen.choice([0.0, 0.25, 1.0]) for _ in windows])
    wanted = np.zeros(len(rows))
    for weight, window in zip(weights, windows, strict=True):
        for moment in range(*window):
            running = [n for n, (a, b, *_) in enumerate(rows) if a <= moment < b]
            for n in running:
                wanted[n] += weight / len(running)
    found = owned.weighted(weights)
    np.testing.assert_allclose(found, wanted, atol=1e-6)
    by_kind = np.bincount(kind, found, KINDS)
    np.testing.assert_allclose(by_kind, weights @ times.attributed, atol=1e-6)


@each_row("seed", range(30))
def test_times_that_cannot_be_change_nothing_else(seed: int) -> None:
    chosen = random.Random(seed)
    windows = some_windows(chosen)
    usual = [row for row in some_rows(chosen, 20) if row[0] < row[1]]
    latest = max(finish for _, finish in windows)
    nonsense = [(-(2**63), -(2**62), 0, True), (2**62, 2**63 - 1, 1, True),
                (latest + 200, -(2**63), 2, True), (-(2**63), -(2**63), 2, False)]  # fmt: skip
    rows = usual + [row for row in nonsense if chosen.random() < 0.7]
    assert_same(charges(rows, windows), by_moment(usual, windows))


@each_row("written", [[0, 1, 2], [0, 2, 1]])
def test_of_two_that_start_together_the_longer_one_waits(written: list[int]) -> None:
    rows = pd.DataFrame(
        {"stream": 7, "start_ns": [0, 10, 10], "end_ns": [5, 20, 40], "row": [0, 1, 2]}
    )
    found = with_own_starts(rows.iloc[written].reset_index(drop=True)).set_index("row")
    assert found["start_ns"].to_dict() == {0: 0, 1: 10, 2: 20}


def test_no_windows() -> None:
    found = charges([(0, 10, 0, True)], [])
    assert found.kernel_time.shape == (0, KINDS)

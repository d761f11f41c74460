"""Nested ranges: which encloses which, and which is open at a moment."""

import random

import numpy as np

from spark_prof.traces.scopes import ModuleRanges, Scopes, ScopeWalk, enclosing
from tests.rows import each_row


def sorted_ranges(ranges):
    start, end = np.array(ranges, np.int64).reshape(-1, 2).T
    order = np.lexsort((-end, start))
    return start[order], end[order]


@each_row(
    ("ranges", "parents"),
    [
        ([], []),
        ([(0, 9)], [-1]),
        ([(0, 9), (1, 3), (4, 8), (5, 6)], [-1, 0, 0, 2]),
        ([(0, 3), (3, 5)], [-1, -1]),
        ([(0, 9), (0, 9)], [-1, 0]),
        ([(0, 9), (9, 9)], [-1, -1]),
        ([(0, 9), (0, 0)], [-1, 0]),
        ([(0, 5), (3, 8), (6, 7)], [-1, 0, 1]),
    ],
)
def test_enclosing(ranges, parents):
    assert enclosing(*sorted_ranges(ranges)).tolist() == parents


NAMES = ["a", "b", "c"]


def nested(source: random.Random, begin: int, end: int, depth: int) -> list[tuple[int, int, int]]:
    """Ranges inside a stretch, each wholly inside or outside the others: start, end, name."""
    found = []
    now = begin + source.randint(1, 20)
    while depth and now < end - 10:
        length = source.randint(4, max(5, (end - begin) // 2))
        if now + length >= end:
            break
        found.append((now, now + length, source.randrange(len(NAMES))))
        found += nested(source, now, now + length, depth - 1)
        now += length + source.randint(1, 30)
    return found


def opened(ranges: list[tuple[int, int, int]], time: int) -> list[str]:
    """The names of the ranges around a moment, outermost first."""
    around = [row for row in ranges if row[0] <= time < row[1]]
    return [NAMES[name] for _, _, name in sorted(around, key=lambda row: (row[0], -row[1]))]


@each_row("seed", range(30))
def test_a_walk_agrees_with_a_stack(seed: int) -> None:
    source = random.Random(seed)
    threads = {thread: nested(source, 0, 2000, 5) for thread in (7, 8)}
    bounds = sorted(source.sample(range(1, 2000), source.randint(0, 4)))
    scopes = Scopes()
    walk = ScopeWalk(scopes, NAMES)
    for begin, end in zip([0, *bounds], [*bounds, 2001], strict=True):
        rows = sorted(
            (start, stop, thread, name)
            for thread, ranges in threads.items()
            for start, stop, name in ranges
            if begin <= start < end
        )
        columns = np.array(rows, np.int64).reshape(-1, 4).T
        scope = walk.advance(ModuleRanges(*columns), begin)
        for (start, _, thread, _), found in zip(rows, scope, strict=True):
            assert scopes.path(found) == opened(threads[thread], start)
        times = np.array([source.randrange(begin, end) for _ in range(50)], np.int64)
        asked = np.array([source.choice((7, 8, 9)) for _ in times], np.int64)
        for time, thread, found in zip(times, asked, walk.at(asked, times), strict=True):
            ranges = threads.get(int(thread), [])
            # A range that ends at the very moment may count as open.
            if not any(stop == time for _, stop, _ in ranges):
                assert scopes.path(found) == opened(ranges, int(time))


def test_ranges_that_begin_together_are_inside_the_longest() -> None:
    scopes = Scopes()
    walk = ScopeWalk(scopes, NAMES)
    rows = ModuleRanges(
        np.array([5, 5, 5]), np.array([10, 30, 20]), np.array([1, 1, 1]), np.array([2, 0, 1])
    )
    found = walk.advance(rows, 0)
    assert [scopes.path(scope) for scope in found] == [["a", "b", "c"], ["a"], ["a", "b"]]


def test_ranges_deeper_than_any_model() -> None:
    """They take their place above the limit, in bounded time."""
    count = 5000
    start = np.arange(count)
    rows = ModuleRanges(start, 3 * count - start, np.ones(count, np.int64), start % 3)
    scopes = Scopes()
    scope = ScopeWalk(scopes, NAMES).advance(rows, 0)
    assert len(scopes) == 256
    assert scope.tolist() == [*range(256), *[255] * (count - 256)]

"""Nested ranges: which encloses which, and which is open at a moment."""

import numpy as np

from spark_prof.traces.scopes import Scopes, enclosing, innermost
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


def slow_innermost(start, end, times):
    """The latest range that began and has not ended; what a stack would show."""
    return [
        max((i for i in range(len(start)) if start[i] <= t <= end[i]), default=-1) for t in times
    ]


@each_row("seed", range(20))
def test_random_nests_against_a_search_of_all(seed):
    random = np.random.default_rng(seed)
    ranges: list[tuple[int, int]] = []

    def grow(start: int, end: int, depth: int) -> None:
        cuts = sorted(random.choice(np.arange(start + 1, end), 4, replace=False).tolist())
        for low, high in (cuts[:2], cuts[2:]):
            ranges.append((low, high))
            if depth and high - low > 8:
                grow(low, high, depth - 1)

    grow(0, 100_000, 6)
    start, end = sorted_ranges(ranges)
    times = random.integers(-5, 100_005, 300)
    found = innermost(start, end, enclosing(start, end), times)
    assert found.tolist() == slow_innermost(start, end, times)


def test_a_chain_of_a_million_siblings_is_fast_enough_to_run_here():
    start = np.arange(0, 2_000_000, 2, dtype=np.int64)
    parents = enclosing(np.append(-1, start), np.append(3_000_000, start + 1))
    assert (parents[1:] == 0).all()


def test_a_scope_is_a_path():
    scopes = Scopes()
    block = scopes.child(-1, "Block_0")
    norm = scopes.child(block, "Norm_0")
    assert scopes.child(block, "Norm_0") == norm
    assert scopes.path(norm) == ["Block_0", "Norm_0"]
    assert len(scopes) == 2

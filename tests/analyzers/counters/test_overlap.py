"""Overlap of samples and kernels, against a count of every nanosecond."""

from __future__ import annotations

import numpy as np

from spark_prof.analyzers.counters.counter_rows import amounts_by_time
from spark_prof.analyzers.counters.folding import overlaps, uncovered
from tests.rows import each_row


def random_times(seed: int) -> tuple[np.ndarray, ...]:
    random = np.random.default_rng(seed)
    edges = np.sort(random.choice(200, 20, replace=False))
    start = random.integers(0, 190, int(random.integers(0, 15)))
    return edges[::2], edges[1::2], start, start + random.integers(0, 30, len(start))


@each_row("seed", range(30))
def test_every_nanosecond_is_counted_once(seed: int) -> None:
    begin, finish, start, end = random_times(seed)
    found = overlaps(begin, finish, start, end)
    table = np.zeros((len(begin), len(start)), int)
    np.add.at(table, (found.sample, found.kernel), found.ns)
    for sample in range(len(begin)):
        inside = np.arange(begin[sample], finish[sample])
        ran = [(inside >= s) & (inside < e) for s, e in zip(start, end, strict=True)]
        assert table[sample].tolist() == [int(r.sum()) for r in ran]
        idle = ~np.any(ran, axis=0) if ran else np.ones(len(inside), bool)
        assert uncovered(begin, finish, start, end)[sample] == idle.sum()
    assert (found.ns >= 0).all()


def test_a_long_kernel_has_what_its_samples_counted() -> None:
    begin = np.arange(0, 100_000, 2_000)
    sampled = np.ones(len(begin))
    start, end = np.array([1_000, 50_000, 90_000]), np.array([41_000, 52_000, 130_000])
    found = amounts_by_time(begin, begin + 2_000, sampled, start, end)
    # The first kernel has the halves of two samples to itself; the last one runs out of samples.
    assert found[0] == 21
    assert np.isnan(found[1:]).all()

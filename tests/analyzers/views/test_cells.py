"""The map of layers: what its cells add up to, and their percentiles."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from spark_prof.analyzers.views import layer_cells
from spark_prof.analyzers.views.layer_cells import cell_times, step_cells

from .columns import columns, steps_of

DATA = Path(__file__).parents[2] / "data"


def test_percentiles_are_those_of_the_steps() -> None:
    rng = np.random.default_rng(3)
    times = rng.integers(1, 10_000, (40, 2))
    calls = [
        (step, layer, "mlp", "m", int(times[step, layer]) + half)
        for step in range(40) for layer in (0, 1) for half in (0, 1)
    ]  # fmt: skip
    found = cell_times(step_cells(columns(calls), steps_of(range(40))), np.ones(40, bool))
    us = (2 * times + 1) / 1e3
    assert found.layer == (0, 1)
    assert found.median_us == pytest.approx(np.median(us, axis=0))
    assert found.p99_us == pytest.approx(np.percentile(us, 99, axis=0))
    low, high = np.percentile(us, (10, 90), axis=0)
    assert found.spread_us == pytest.approx(high - low)
    assert found.mean_us == pytest.approx(us.mean(axis=0))


def test_only_chosen_steps_and_kernels_count() -> None:
    calls = [
        (0, 0, "mlp", "m", 1000),
        (0, -1, "memcpy", "copy", 5000),
        (1, 0, "mlp", "m", 3000),
        (1, 1, "qkv", "q", 700),
        (-1, 0, "mlp", "m", 9000),
        (7, 0, "mlp", "m", 9000),
    ]
    found = step_cells(columns(calls, copies=["copy"]), steps_of([0, 1]))
    assert found.ns.tolist() == [[1000, 3000], [0, 700]]
    first = cell_times(found, np.array([True, False]))
    assert (first.layer, first.component, first.steps) == ((0,), ("mlp",), 1)
    assert first.median_us.tolist() == [1.0]
    none = cell_times(found, np.array([False, False]))
    assert (len(none), none.steps) == (0, 0)


def test_of_very_many_steps_every_nth_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = [(step, 0, "mlp", "m", step + 1) for step in range(100)]
    kernels, steps = columns(calls), steps_of(range(100))
    monkeypatch.setattr(layer_cells, "_MOST_ENTRIES", 30)
    found = step_cells(kernels, steps)
    assert found.steps.tolist() == list(range(0, 100, 4))
    assert found.ns[0].tolist() == list(range(1, 101, 4))


def test_nothing_has_no_cells() -> None:
    found = step_cells(columns([]), steps_of([0]))
    assert found.ns.shape == (0, 1)
    assert len(cell_times(found, np.array([True]))) == 0

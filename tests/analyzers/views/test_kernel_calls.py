"""The calls of one kernel, and the kernels of one cell: percentiles, layers, shapes, course."""

from __future__ import annotations

from dataclasses import replace
from operator import attrgetter

import numpy as np
import pytest

from spark_prof.analyzers.shapes.shape_rows import SHAPE_COLUMNS
from spark_prof.analyzers.step_time import kinds_of
from spark_prof.analyzers.views import kernel_calls
from spark_prof.analyzers.views.kernel_calls import (
    calls_of,
    durations,
    launches,
    layers,
    over_steps,
)
from spark_prof.analyzers.views.layer_cells import KernelColumns, kernels_of_cell

from .columns import Call, columns, launched, steps_of

RNG = np.random.default_rng(11)
CALLS: list[Call] = [
    (step, layer, component, name, int(RNG.integers(1000, 9000)))
    for step in range(-1, 50)
    for layer in range(-1, 3)
    for component, name in (("mlp", "gemm"), ("qkv", "gemm"), ("mlp", "silu"))
]


SHAPES = (("1,1,1", "32,1,1", 16, 0), ("4,1,1", "64,1,1", 32, 1024))


def made() -> KernelColumns:
    kernels = columns(CALLS)
    shape = (kernels.layer > 0).astype(np.int32)
    return replace(kernels, launch=shape, launches=launched(*SHAPES))


def took(**wanted: object) -> np.ndarray:
    names = ("step", "layer", "component", "name")
    return np.array([
        call[-1] for call in CALLS if call[0] >= 0
        if all(call[names.index(key)] == value for key, value in wanted.items())
    ])  # fmt: skip


STEPS = steps_of(range(50))
CALLS_OF = calls_of(made(), STEPS, 0)


def test_the_calls_of_a_kernel_are_those_of_analyzed_steps() -> None:
    calls = CALLS_OF
    assert (calls.all, len(calls)) == (50 * 4 * 2, 50 * 4 * 2)
    assert calls.took_ns.sum() == took(name="gemm").sum()
    none = calls_of(made(), steps_of([77]), 0)
    assert (none.all, durations(none), layers(none)) == (0, None, ())


def test_a_kernel_is_told_by_layer_and_shape() -> None:
    calls = CALLS_OF
    uses = {(use.layer, use.component): use for use in layers(calls)}
    assert set(uses) == {(layer, part) for layer in range(-1, 3) for part in ("mlp", "qkv")}
    mine = took(name="gemm", layer=2, component="qkv") / 1e3
    assert uses[2, "qkv"].median_us == pytest.approx(np.median(mine))
    assert uses[2, "qkv"].p90_us == pytest.approx(np.percentile(mine, 90))
    shapes = launches(calls, made())
    assert {attrgetter(*SHAPE_COLUMNS)(use) for use in shapes} == {*SHAPES}
    assert sum(use.calls for use in shapes) == calls.all
    assert sum(use.share for use in shapes) == pytest.approx(1)
    assert shapes[0].share >= shapes[1].share


def test_each_call_is_in_one_bar() -> None:
    calls = CALLS_OF
    found = durations(calls)
    assert found
    assert found.counts.sum() == calls.all
    assert found.median_us == pytest.approx(np.median(took(name="gemm")) / 1e3)
    low, high = found.edges_us[0] * 1e3, found.edges_us[-1] * 1e3
    counts, _ = np.histogram(calls.took_ns, np.round(found.edges_us * 1e3))
    assert low <= calls.took_ns.min() <= calls.took_ns.max() <= high
    assert counts.tolist() == found.counts.tolist()


def test_one_long_call_does_not_squeeze_the_bars() -> None:
    calls = columns([(0, 0, "mlp", "m", 1000 + 32 * (n % 50)) for n in range(5000)]
                    + [(0, 0, "mlp", "m", 10**9)])  # fmt: skip
    found = durations(calls_of(calls, steps_of([0]), 0))
    assert found
    assert found.edges_us[-1] < 10
    assert found.most_us == 1e6
    assert found.counts.sum() == 5001
    assert (found.counts > 0).sum() > 20


def test_the_course_is_that_of_stretches_of_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = CALLS_OF
    each = over_steps(calls, STEPS)
    assert each.steps == 1
    assert each.median_us[7] == pytest.approx(np.median(took(name="gemm", step=7)) / 1e3)
    monkeypatch.setattr(kernel_calls, "_BINS", 10)
    found = over_steps(calls, STEPS)
    assert (found.steps, found.step.tolist()) == (5, list(range(0, 50, 5)))
    mine = np.concatenate([took(name="gemm", step=step) for step in range(5, 10)]) / 1e3
    assert found.median_us[1] == pytest.approx(np.median(mine))
    assert found.low_us[1] == pytest.approx(np.percentile(mine, 10))


def test_of_very_many_calls_some_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_calls, "_MOST_CALLS", 100)
    calls = calls_of(made(), STEPS, 0)
    assert calls.all == 400
    assert len(calls) == 100
    assert over_steps(calls, STEPS).step[-1] == 49


def test_the_kernels_of_a_cell_add_up_to_it() -> None:
    chosen = np.arange(50) % 2 == 0
    rows = kernels_of_cell(made(), STEPS, chosen, 1, "mlp")
    assert sorted(row.name for row in rows) == [0, 1]
    for row in rows:
        name = ("gemm", "silu")[row.name]
        each = [took(name=name, layer=1, component="mlp", step=s) for s in range(0, 50, 2)]
        mine = np.concatenate(each) / 1e3
        assert row.calls == 1
        assert row.us == pytest.approx(mine.sum() / 25)
        assert row.median_us == pytest.approx(np.median(mine))
        assert row.p99_us == pytest.approx(np.percentile(mine, 99))
    assert sum(row.share for row in rows) == pytest.approx(1)
    assert kernels_of_cell(made(), STEPS, chosen, 9, "mlp") == ()


def test_steps_are_chosen_by_phase_and_batch_size() -> None:
    steps = steps_of(range(6)).assign(
        phase=["prefill", "decode", "decode", "decode", "mixed", "decode"],
        decode_requests=[0, 1, 8, 8, 3, 1],
    )
    kinds = kinds_of(steps)
    assert [kind.word for kind in kinds] == [
        "decode", "decode-1", "decode-8", "prefill", "mixed", "all",
    ]  # fmt: skip
    assert [kind.of(steps).sum() for kind in kinds] == [kind.steps for kind in kinds]
    assert np.flatnonzero(kinds[2].of(steps)).tolist() == [2, 3]
    assert [kind.word for kind in kinds_of(steps_of([1, 2]))] == ["decode"]
    assert [kind.word for kind in kinds_of(steps_of([]))] == ["all"]

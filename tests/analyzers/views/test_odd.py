"""Odd layers: those that were planted are found, and noise is not taken for one."""

from __future__ import annotations

import numpy as np
import pytest

from spark_prof.analyzers.views.layer_cells import StepCells, step_cells
from spark_prof.analyzers.views.layer_outliers import (
    CellPart,
    LayerComparison,
    Makeups,
    cause_of,
    compare_layers,
    layers_by_kernels,
    makeups,
)
from spark_prof.vocabulary import COMPONENTS
from tests.rows import each_row

from .columns import columns, steps_of

LAYERS, STEPS = 24, 30
NAMES = ("norm", "qkv", "rope", "kv_write", "attention", "o_proj", "router", "experts")


def compared(times: np.ndarray, makeup: Makeups | None = None) -> LayerComparison:
    """Compares layers whose times, component by layer by step, are these in nanoseconds."""
    components, layers, steps = times.shape
    cells = StepCells(
        layer=np.repeat(np.arange(layers), components).astype(np.int16),
        component=np.tile([COMPONENTS.index(name) for name in NAMES[:components]], layers).astype(
            np.uint8
        ),
        steps=np.arange(steps),
        ns=times.transpose(1, 0, 2).reshape(-1, steps).astype(np.float64),
    )
    same = {
        (layer, name): (CellPart(0, 1.0, 1.0),)
        for layer in range(layers)
        for name in NAMES[:components]
    }
    return compare_layers(cells, makeup or same, np.ones(steps, bool))


def noise(
    rng: np.random.Generator, layers: int, *, scatter: float = 0.01, mixed: bool = False
) -> np.ndarray:
    """Layers that differ by chance alone, in steps that differ too, some of them by much.

    With `mixed` the layers' scatter is another one in each component, from a tenth to five times.
    """
    base = rng.uniform(2e3, 30e3, len(NAMES))[:, None, None]
    width = scatter * (10 ** rng.uniform(-1, 0.7, len(NAMES)) if mixed else np.ones(len(NAMES)))
    own = 1 + width[:, None, None] * rng.standard_normal((len(NAMES), layers, 1))
    chance = rng.standard_t(3, (len(NAMES), layers, STEPS))
    step = 1 + 0.1 * rng.random(STEPS)
    return np.maximum(base * own * step * (1 + 0.02 * chance), 100)


@pytest.mark.slow
@each_row("layers", [4, 8, 48])
@each_row("mixed", [False, True])
@each_row("scatter", [0.0, 0.01, 0.05])
def test_equal_layers_are_rarely_called_odd(layers: int, scatter: float, mixed: bool) -> None:
    rng = np.random.default_rng(layers)
    recordings = [noise(rng, layers, scatter=scatter, mixed=mixed) for _ in range(200)]
    # One recording in a hundred is allowed to; over 5 of 200 would be chance once in 60 times.
    assert sum(bool(compared(times).outliers) for times in recordings) <= 5


@each_row("seed", range(40))
@each_row("change", [1.14, 0.86])
def test_a_planted_layer_is_found(seed: int, change: float) -> None:
    rng = np.random.default_rng(seed)
    times = noise(rng, LAYERS, scatter=0.005)
    component, layer = int(rng.integers(len(NAMES))), int(rng.integers(LAYERS))
    times[component, layer] *= change
    (odd, *more) = compared(times).outliers
    assert (odd.component, odd.layer) == (NAMES[component], layer)
    assert odd.share == pytest.approx(change - 1, abs=0.03)
    assert len(more) <= 1


def test_two_planted_layers_do_not_hide_each_other() -> None:
    times = noise(np.random.default_rng(1), LAYERS, scatter=0.005)
    times[7, [3, 17]] *= 1.2
    found = compared(times)
    assert {cell.layer for cell in found.outliers} == {3, 17}


def test_what_slows_whole_steps_makes_no_layer_odd() -> None:
    times = noise(np.random.default_rng(2), LAYERS, scatter=0.0)
    times[:, :, ::3] *= 5
    assert not compared(times).outliers


def test_a_difference_below_three_per_cent_is_left_alone() -> None:
    times = np.full((1, LAYERS, STEPS), 50_000.0)
    times[0, 5] *= 1.025
    assert not compared(times).outliers
    times[0, 5] *= 1.01
    assert [cell.layer for cell in compared(times).outliers] == [5]


def test_less_than_the_clock_tells_is_left_alone() -> None:
    times = np.full((1, LAYERS, STEPS), 800.0)
    times[0, 5] += 64
    assert not compared(times).outliers


@pytest.mark.parametrize(("layers", "steps"), [(3, STEPS), (LAYERS, 3)])
def test_too_few_layers_or_steps_are_not_judged(layers: int, steps: int) -> None:
    times = noise(np.random.default_rng(4), layers)[:, :, :steps]
    times[0, 0] *= 50
    found = compared(times)
    assert (found.outliers, found.tested, found.untested) == ((), 0, layers * len(NAMES))


CALLS = [
    (step, layer, component, name, took)
    for step in range(8)
    for layer in range(12)
    for component, name, took in (
        ("norm", "first_norm" if layer == 0 else "norm", 1000 if layer else 3000),
        ("attention", "sliding" if layer % 2 else "full", 9000 if layer % 2 else 15000),
        ("mlp", "gemm", 20_000 + 64 * ((step + layer) % 3)),
        *((("mlp", "gemm", 20_000),) if layer == 7 else ()),
    )
]


def planted() -> tuple[LayerComparison, Makeups, tuple[str, ...]]:
    kernels, steps = columns(CALLS), steps_of(range(8))
    every = np.ones(8, bool)
    makeup = makeups(kernels, steps, every)
    return compare_layers(step_cells(kernels, steps), makeup, every), makeup, kernels.names


def test_layers_are_alike_component_by_component() -> None:
    _, makeup, _ = planted()
    groups = dict(layers_by_kernels(makeup))
    assert groups["attention"] == [list(range(0, 12, 2)), list(range(1, 12, 2))]
    assert groups["norm"] == [list(range(1, 12)), [0]]
    assert [7] in groups["mlp"]


def test_other_kernels_and_more_calls_are_told() -> None:
    found, makeup, names = planted()
    causes = {(odd.component, odd.layer): cause_of(odd, makeup) for odd in found.outliers}
    assert set(causes) == {("norm", 0), ("mlp", 7)}
    norm, mlp = causes["norm", 0], causes["mlp", 7]
    assert norm
    assert (names[norm.name], norm.kind, norm.us, norm.like_us) == ("first_norm", "other", 3.0, 0)
    assert mlp
    assert (names[mlp.name], mlp.kind, mlp.calls, mlp.like_calls) == ("gemm", "calls", 2.0, 1.0)


def test_a_slower_kernel_is_told() -> None:
    calls = [
        (step, layer, "mlp", name, took + 40 * ((step * layer) % 2))
        for step in range(8)
        for layer in range(12)
        for name, took in (("gemm", 26_000 if layer == 4 else 20_000), ("silu", 3_000))
    ]
    kernels, steps, every = columns(calls), steps_of(range(8)), np.ones(8, bool)
    makeup = makeups(kernels, steps, every)
    (odd,) = compare_layers(step_cells(kernels, steps), makeup, every).outliers
    cause = cause_of(odd, makeup)
    assert cause
    assert (odd.layer, kernels.names[cause.name], cause.kind) == (4, "gemm", "time")
    assert cause.us - cause.like_us == pytest.approx(6.0, abs=0.05)

"""Sums of kernel time by component, layer and kernel."""

from __future__ import annotations

import pandas as pd
import pytest

from spark_prof.analyzers.breakdown import component_rows, kernel_rows, layer_rows
from spark_prof.vocabulary import COMPONENTS

PHASES = pd.Series(["prefill", "decode", "decode", "mixed"], index=[3, 4, 5, 6])


def kernels(*rows: tuple[str, str, int, int, float, int]) -> pd.DataFrame:
    """name, component, layer, step, us and part of each."""
    frame = pd.DataFrame(rows, columns=["name", "component", "layer", "step", "us", "part"])
    component = pd.Categorical(frame["component"], categories=COMPONENTS)
    return frame.assign(component=component, name=frame["name"].astype("category"))


SOME = kernels(
    ("gemm", "qkv", 0, 3, 10.0, 0),
    ("gemm", "qkv", 0, 4, 2.0, 0),
    ("gemm", "qkv", 1, 5, 3.0, 0),
    ("norm", "norm", -1, 4, 1.0, 0),
    ("gemm", "mlp", 1, 6, 24.0, 0),
    ("gemm", "mlp", 1, 6, 20.0, 1),
)


def test_components_the_most_expensive_first() -> None:
    rows = component_rows(SOME, PHASES, 2)
    assert [(r.name, r.us, r.kernels) for r in rows] == [
        ("mlp", 44.0, 1), ("qkv", 15.0, 3), ("norm", 1.0, 1),
    ]  # fmt: skip
    assert [r.share for r in rows] == [pytest.approx(us / 60) for us in (44, 15, 1)]


def test_components_by_phase() -> None:
    qkv = next(row for row in component_rows(SOME, PHASES, 2) if row.name == "qkv")
    assert (qkv.prefill_us, qkv.decode_us, qkv.mixed_us) == (10.0, 5.0, 0.0)
    assert qkv.decode_us_per_step == 2.5


def test_without_decode_steps_nothing_is_a_time_per_step() -> None:
    assert {row.decode_us_per_step for row in component_rows(SOME, PHASES, 0)} == {0.0}


def test_layers_in_the_order_of_the_model() -> None:
    assert [(r.layer, r.component, r.us, r.kernels) for r in layer_rows(SOME)] == [
        (None, "norm", 1.0, 1), (0, "qkv", 12.0, 2), (1, "qkv", 3.0, 1), (1, "mlp", 44.0, 1),
    ]  # fmt: skip


def test_kernels_by_name_and_component() -> None:
    rows = kernel_rows(SOME)
    assert [(r.name, r.component, r.us, r.calls) for r in rows] == [
        ("gemm", "mlp", 44.0, 1), ("gemm", "qkv", 15.0, 3), ("norm", "norm", 1.0, 1),
    ]  # fmt: skip
    assert sum(row.share for row in rows) == pytest.approx(1)


def test_equally_expensive_kernels_keep_one_order() -> None:
    names = [f"k{number:02}" for number in range(40)]
    some = kernels(*((name, "norm", 0, 4, 1.0, 0) for name in reversed(names)))
    assert [row.name for row in kernel_rows(some)] == names


def test_every_sum_is_the_same_sum() -> None:
    total = SOME["us"].sum()
    for rows in (component_rows(SOME, PHASES, 2), layer_rows(SOME), kernel_rows(SOME)):
        assert sum(row.us for row in rows) == pytest.approx(total)


def test_nothing() -> None:
    nothing = kernels()
    assert component_rows(nothing, PHASES, 1) == ()
    assert layer_rows(nothing) == ()
    assert kernel_rows(nothing) == ()


def test_kernels_of_no_time() -> None:
    rows = component_rows(kernels(("k", "norm", 0, 4, 0.0, 0)), PHASES, 1)
    assert [(row.us, row.share) for row in rows] == [(0.0, 0.0)]

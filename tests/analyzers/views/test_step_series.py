"""Steps as columns: which are slow, how batch sizes compare, and what context costs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from spark_prof.analyzers.views.step_series import (
    StepSeries,
    batch_times,
    context_fits,
    steps_of,
    thinned,
)
from tests.rows import each_row


def table(
    us: np.ndarray, *, context: np.ndarray | None = None, requests: int = 1, phase: str = "decode"
) -> pd.DataFrame:
    number = len(us)
    decode = phase == "decode"
    return pd.DataFrame(
        {
            "step": np.arange(number),
            "phase": pd.Categorical([phase] * number),
            "begin_ns": 10**18 + np.arange(number) * 10**6,
            "step_us": us,
            "prefill_requests": 0 if decode else requests,
            "prefill_tokens": 0 if decode else 100,
            "decode_requests": requests if decode else 0,
            "context_tokens": -1 if context is None else (context * requests).astype(np.int64),
        }
    )


def fitted(us: np.ndarray, context: np.ndarray) -> StepSeries:
    return steps_of(table(us, context=context))


@each_row("seed", range(20))
def test_a_planted_slope_lies_in_its_interval(seed: int) -> None:
    rng = np.random.default_rng(seed)
    context = np.linspace(100, 8100, 400)
    us = 4000 + 0.05 * context + rng.normal(0, 20, 400)
    (fit,) = context_fits(fitted(us, context))
    assert fit.slope_us is not None
    assert fit.within_us is not None
    # An interval of 95 % may miss; twice its width hardly does.
    assert abs(fit.slope_us - 50) < 2 * fit.within_us
    assert fit.us_at(4100) == pytest.approx(4205, rel=0.01)


@each_row(("remembered", "most"), [(0.0, 5), (0.9, 8)])
def test_what_is_no_slope_mostly_abstains(remembered: float, most: int) -> None:
    """Steps that wander together say less than their number."""
    told = 0
    for seed in range(40):
        rng = np.random.default_rng(seed)
        wander = np.zeros(400)
        for place in range(400):
            wander[place] = remembered * wander[place - 1] + rng.normal(0, 20)
        (fit,) = context_fits(fitted(4000 + wander, np.linspace(0, 4000, 400)))
        told += fit.slope_us is not None
        assert (fit.slope_us is None) == bool(fit.why_not)
    assert told <= most


@each_row(("number", "span"), [(19, 4000.0), (200, 60.0), (200, 0.0), (1, 0.0)])
def test_too_little_is_not_fitted(number: int, span: float) -> None:
    context = np.linspace(100, 100 + span, number)
    (fit,) = context_fits(fitted(4000 + 0.05 * context, context))
    assert fit.slope_us is None
    assert fit.us_at(100) is None
    assert fit.why_not


def test_a_step_is_slow_beside_its_like_only() -> None:
    us = np.full(60, 100.0)
    us[30] = 151.0
    large = table(np.full(60, 300.0), requests=8)
    steps = steps_of(pd.concat([table(us), large], ignore_index=True))
    assert np.flatnonzero(steps.slow).tolist() == [30]
    assert not steps_of(table(np.array([1.0, 1.0, 9.0]))).slow.any()


def test_batch_sizes_hold_all_decode_steps() -> None:
    parts = [
        table(np.arange(1.0, 12.0), requests=4),
        table(np.arange(100.0, 200.0), requests=2),
        table(np.full(5, 7.0), phase="prefill"),
    ]
    one, two = batch_times(steps_of(pd.concat(parts, ignore_index=True)))
    assert (one.requests, one.steps, one.median_us) == (2, 100, 149.5)
    assert (two.requests, two.steps, two.median_us) == (4, 11, 6.0)
    assert two.tokens_per_s == pytest.approx(4 / 6e-6)
    assert replace(two, median_us=0.0).tokens_per_s == 0


def test_no_steps_are_no_steps() -> None:
    steps = steps_of(table(np.zeros(0)))
    assert len(steps) == 0
    assert batch_times(steps) == ()
    assert context_fits(steps) == context_fits(steps_of(table(np.full(50, 4000.0)))) == ()


@each_row("seed", range(10))
def test_thinning_keeps_extremes_and_order(seed: int) -> None:
    rng = np.random.default_rng(seed)
    number = int(rng.integers(1, 5000))
    along, value = rng.normal(size=number), rng.normal(size=number)
    kept = thinned(along, value, 200)
    assert len(kept) <= 200 or len(kept) == number
    assert len(set(kept.tolist())) == len(kept)
    assert (np.diff(along[kept]) >= 0).all()
    assert value[kept].max() == value.max()
    assert value[kept].min() == value.min()
    # Of each tenth the extremes are there, too.
    order = np.argsort(along, kind="stable")
    for part in np.array_split(order, 10) if number >= 2000 else ():
        inner = part[len(part) // 8 : -len(part) // 8]
        assert value[np.intersect1d(kept, part)].max() >= value[inner].max()

"""Comparing logits and forcing tokens."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from spark_prof.swaps.tap import compare_logits, force_tokens
from tests.rows import each_row

SEEDS = each_row("seed", range(20))
DTYPES = each_row("dtype", [torch.bfloat16, torch.float16, torch.float32])


def rows(seed: int, count: int = 4, vocabulary: int = 300) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    spread = 10 ** (2 * torch.rand(count, 1, generator=generator) - 1)
    return torch.randn(count, vocabulary, generator=generator) * spread


@SEEDS
@DTYPES
def test_the_same_logits_differ_nowhere(seed: int, dtype: torch.dtype) -> None:
    a = rows(seed).to(dtype)
    for row, found in zip(a.double(), compare_logits(a, a.clone()), strict=True):
        assert found.kl_nats == found.worst == 0
        assert found.token_a == found.token_b == int(row.argmax())
        assert found.scale == pytest.approx(float(row.std(correction=0)), rel=1e-12)


@SEEDS
def test_the_numbers_are_those_of_the_definitions(seed: int) -> None:
    a, b = rows(seed), rows(seed) + 0.1 * rows(seed + 1000)
    for one, other, found in zip(a.numpy(), b.numpy(), compare_logits(a, b), strict=True):
        p, q = (np.exp(x.astype(np.longdouble)) for x in (one, other))
        p, q = p / p.sum(), q / q.sum()
        assert found.kl_nats == pytest.approx(float((p * np.log(p / q)).sum()), rel=1e-9)
        assert found.worst == pytest.approx(float(np.abs(one - other).max()), rel=1e-6)
        ordered = np.sort(one)
        assert found.margin_a == pytest.approx(float(ordered[-1] - ordered[-2]), abs=1e-6)
        assert (found.token_a, found.token_b) == (one.argmax(), other.argmax())


def test_tokens_that_both_sides_exclude_count_as_equal() -> None:
    a, b = rows(1), rows(2)
    shorter = compare_logits(a[:, :200], b[:, :200])
    a[:, 200:], b[:, 200:] = -math.inf, -math.inf
    for found, expected in zip(compare_logits(a, b), shorter, strict=True):
        assert found.kl_nats == pytest.approx(expected.kl_nats)
        assert (found.worst, found.scale) == pytest.approx((expected.worst, expected.scale))


def test_a_token_that_only_one_side_excludes_is_infinitely_far() -> None:
    a, b = rows(1), rows(1)
    b[:, 7] = -math.inf
    assert all(d.kl_nats == d.worst == math.inf for d in compare_logits(a, b))


@each_row("value", [math.nan, math.inf])
@each_row("side", ["a", "b"])
def test_logits_that_are_no_numbers_show(value: float, side: str) -> None:
    a, b = rows(1), rows(1)
    (a if side == "a" else b)[:, 3] = value
    for found in compare_logits(a, b):
        assert not math.isfinite(found.kl_nats)
        assert not math.isfinite(found.worst)


@SEEDS
@DTYPES
def test_a_forced_token_is_taken_and_other_rows_stay(seed: int, dtype: torch.dtype) -> None:
    logits = rows(seed).to(dtype)
    logits[1, 5] = math.nan
    before = logits.clone()
    tokens = torch.tensor([299, seed])
    forced = force_tokens(logits, [1, 3], tokens)
    assert forced[[1, 3]].argmax(dim=1).equal(tokens)
    assert forced[[1, 3]].float().softmax(dim=1).amax(dim=1).equal(torch.ones(2))
    assert forced[[0, 2]].equal(before[[0, 2]])
    assert logits.isnan().equal(before.isnan())
    assert forced.dtype == dtype

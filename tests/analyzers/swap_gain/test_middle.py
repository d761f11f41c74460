"""The middle of some steps adds up, shrugs off hiccups, and says how sure it is."""

from __future__ import annotations

import numpy as np
import pytest

from spark_prof.analyzers.comparing.typical_step import typical_step
from tests.rows import each_row


@each_row(
    ("length", "steps"),
    [
        ([5.0], [0]),
        ([5.0, 1.0, 9.0], [0, 1, 2]),
        ([5.0, 1.0, 9.0, 4.0], [0, 3]),
        ([1.0, 2.0, 3.0, 4.0, 5.0, 600.0, 7.0, 8.0], [2, 3, 4, 6]),
    ],
)
def test_the_middle_of(length: list[float], steps: list[int]) -> None:
    assert typical_step(np.array(length)).steps.tolist() == steps


def test_parts_add_up_to_the_length() -> None:
    parts = np.random.default_rng(1).exponential(size=(5, 101))
    length = parts.sum(axis=0)
    middle = typical_step(length)
    assert middle.mean(parts).sum() == pytest.approx(length[middle.steps].mean())
    assert middle.resampled.sum(axis=0) == pytest.approx(1)


@pytest.mark.parametrize("share", [0.1, 0.5, 1.0])
def test_the_error_is_that_of_other_recordings(share: float) -> None:
    """The standard error of one recording, beside how far the means of many lie apart."""
    chance = np.random.default_rng(2)
    means, errors = [], []
    for _ in range(300):
        part = chance.normal(10, share, 64)
        length = part + chance.normal(90, 1 - share, 64)
        middle = typical_step(length)
        means.append(middle.mean(part[None])[0])
        errors.append(middle.error(part[None])[0])
    assert np.median(errors) == pytest.approx(np.std(means), rel=0.25)


def test_the_same_steps_give_the_same_error() -> None:
    length = np.random.default_rng(3).normal(100, 1, 50)
    first, second = (typical_step(length).error(length[None]) for _ in range(2))
    assert first == second

"""Where a bound lies: what is on it, and what is just beside it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from spark_prof.analyzers.clients.client_comparison import ClientComparison, _concurrency, _verdict
from spark_prof.kernels.dispatch import DispatchChoice, configured
from spark_prof.speculate.best_k import Best, DraftCount, StepCost
from spark_prof.speculate.speculate_result import Measured, served_drafts
from spark_prof.traces.benchmarks.load_test import BenchmarkRun
from tests.analyzers.views.test_odd import NAMES, compared
from tests.rows import each_row


@pytest.mark.parametrize("layers", [3, 4, 5])
@pytest.mark.parametrize("steps", [3, 4, 5])
def test_layers_are_compared_from_four_of_a_kind_in_four_steps_on(layers: int, steps: int) -> None:
    times = 1000.0 + np.arange(len(NAMES) * layers * steps).reshape(len(NAMES), layers, steps) % 7
    found = compared(times)
    enough = layers >= 4 and steps >= 4
    assert (found.tested, found.untested) == (
        (len(NAMES) * layers, 0) if enough else (0, len(NAMES) * layers)
    )
    assert (found.steps, found.enough_steps) == (steps, steps >= 4)
    assert np.isinf(found.threshold) != enough
    assert found.outliers == ()
    assert len(found.groups) == len(NAMES)


@each_row(
    ("client", "basis", "verdict"),
    [
        (1.0, "steps", "agrees"), (1.0999, "steps", "agrees"), (1.1001, "steps", "slower"),
        (0.9001, "window", "agrees"), (0.8999, "window", "faster"), (2.0, "steps", "slower"),
        (2.0001, "steps", "unknown"), (0.5, "steps", "faster"), (0.4999, "steps", "unknown"),
        (2.0001, "window", "slower"), (0.4999, "window", "faster"),
    ],
)  # fmt: skip
def test_a_client_agrees_within_a_tenth_and_is_of_another_server_beyond_twice(
    client: float, basis: str, verdict: str
) -> None:
    token = ClientComparison("output_token", "mean", 1000 * client, 1000.0)
    assert _verdict(token, basis) == verdict
    assert _verdict(None, basis) == "unknown"


@each_row(
    ("concurrency", "mean", "completed", "wanted"),
    [
        (8, 2.0, 5, 8), (None, 2.4, 5, 2), (None, 2.6, 5, 3), (None, 0.2, 5, 1), (None, None, 1, 1),
        (None, None, 2, None), (0, None, 1, 1),
    ],
)  # fmt: skip
def test_how_many_requests_ran_at_a_time(
    concurrency: int | None, mean: float | None, completed: int, wanted: int | None
) -> None:
    run: Any = SimpleNamespace(concurrency=concurrency, mean_concurrency=mean, completed=completed)
    assert _concurrency(cast(BenchmarkRun, run)) == wanted


def test_drafts_that_are_as_slow_as_none_are_not_served() -> None:
    def best(requests: int, drafts: int, **token_us: float) -> Best:
        rows = [DraftCount(int(k[1:]), StepCost(us), None, 1.0, us) for k, us in token_us.items()]
        return Best(requests, 128, tuple(rows), drafts)

    bests = [best(1, 1, k0=10.0, k1=8.0), best(8, 0, k0=20.0, k1=21.0, k2=20.75, k3=22.0)]
    for loaded, drafts in ((20.5, 0), (20.75, 0), (20.76, 2), (30.0, 2)):
        served = served_drafts(bests, [Measured(8, 128, (), (loaded, loaded))], 128)
        assert served == {1: 1, 8: drafts}


@dataclass(frozen=True)
class Launched:
    """A configuration as far as it is looked at."""

    warps: int
    split: int


@pytest.mark.parametrize("columns", [128, 129, 512])
def test_a_measured_configuration_is_taken_where_its_warps_can_share_the_columns(
    columns: int,
) -> None:
    default = Launched(1, 1)
    for warps in range(-1, 66):
        for split in range(-1, 6):
            given = Launched(warps, split)
            units = -(-columns // 128)
            fits = 1 <= warps <= 32 and 1 <= split <= units and warps % split == 0
            choice = configured(DispatchChoice(asdict(given), "measured"), default, columns)
            assert choice == DispatchChoice(given if fits else default, "measured"), given
    assert configured(DispatchChoice(None, "slower"), default, 128).config is None
    assert configured(DispatchChoice({}, "unknown"), default, 128).config == default

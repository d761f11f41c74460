"""The search for a configuration, what it tries of BF16, and what a file of measurements says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from spark_prof.kernels.bench.configurations import VALUES, known_config, search
from spark_prof.kernels.dense import LinearConfig, default_config
from spark_prof.kernels.moe import default_config as default_moe
from spark_prof.kernels.tuning import Tuned, TunedShape, TuningRun, known_runs, save
from tests.rows import each_row

pytest.importorskip("torch")

from spark_prof.kernels.bench.configurations import bf16_candidates
from spark_prof.kernels.bench.shapes import TOKENS, DenseShape, dense_work
from spark_prof.kernels.operands import stacks_at_a_time

SHAPES = [shape for shape, _ in dense_work((), ["bf16"])]
PROCESSORS = 132


@each_row("shape", SHAPES)
@each_row("tokens", TOKENS)
def test_they_are_few_and_possible(tokens: int, shape: DenseShape) -> None:
    tried = list(bf16_candidates(shape.rows, shape.columns, tokens, PROCESSORS))
    assert 10 <= len(tried) == len(set(tried)) <= 60
    for config in tried:
        stacks = stacks_at_a_time(config.warps, config.split)
        assert config.split <= -(-shape.columns // 128)
        assert config.min_blocks >= 1
        assert config.warps * config.min_blocks <= 64
        blocks = config.blocks * PROCESSORS
        assert blocks < -(-shape.rows // (16 * stacks)), "as many blocks as without a limit"


START = LinearConfig(warps=8, split=4, depth=2, x_ahead=1, min_blocks=2)
WORK = TunedShape("dense", "nvfp4", 4096, 4096, 1)


def far_from(goal: LinearConfig, config: LinearConfig) -> float:
    """A time that falls towards a goal field by field."""
    pairs = zip(asdict(goal).items(), asdict(config).values(), strict=True)
    steps = (abs(VALUES[k].index(wanted) - VALUES[k].index(has)) for (k, wanted), has in pairs)
    return 10.0 + sum(steps)


def test_every_field_has_values_to_try() -> None:
    bf16 = (default_config(*work, "bf16") for work in ((32, 2880, 1), (2880, 4096, 9)))
    linear = (*bf16, default_config(4096, 4096, 1))
    for config in (*linear, default_moe(2048, 1), default_moe(2880, 1)):
        for name, value in asdict(config).items():
            assert value in VALUES[name], name


@each_row(
    "goal",
    [
        START,
        replace(START, depth=4, x_ahead=0),
        LinearConfig(warps=4, split=2, depth=3, x_ahead=0, min_blocks=4, blocks=2),
        LinearConfig(warps=16, split=16, depth=1, x_ahead=1, min_blocks=4, blocks=8),
    ],
)
def test_it_ends_at_the_fastest_where_every_step_towards_it_is_faster(goal: LinearConfig) -> None:
    def time_all(configs: Sequence[LinearConfig]) -> list[float | None]:
        return [far_from(goal, config) for config in configs]

    assert search(START, time_all) == goal


def test_what_does_not_run_is_passed_over() -> None:
    def time_all(configs: Sequence[LinearConfig]) -> list[float | None]:
        return [None if c.depth == 3 else 10.0 - c.depth for c in configs]

    assert search(START, time_all).depth == 4
    assert search(START, lambda configs: [None] * len(configs)) == START


def test_it_ends_where_it_shall() -> None:
    calls: list[int] = []

    def time_all(configs: Sequence[LinearConfig]) -> list[float | None]:
        calls.append(len(configs))
        return [10.0 - c.depth for c in configs]

    assert search(START, time_all, lambda: len(calls) == 1).depth == 4
    assert len(calls) == 1
    assert search(START, time_all, lambda: True) == START


@pytest.fixture
def measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user's file in which one piece of work was measured on an H100."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "own"))
    shipped = tmp_path / "shipped.json"
    save(TuningRun("sm_90a", "H100", "2026-01-01", "", {}, ()), shipped)
    monkeypatch.setattr("spark_prof.kernels.tuning.SHIPPED", shipped)
    known_runs.cache_clear()
    row = Tuned(WORK, asdict(replace(START, depth=4)), 3.0)
    odd = Tuned(replace(WORK, tokens=2), {"depth": 4}, 3.0)
    save(TuningRun("sm_90a", "H100", "2026-01-01", "", {}, (row, odd)))
    yield
    known_runs.cache_clear()


@pytest.mark.usefixtures("measured")
def test_only_the_very_work_on_such_a_machine_is_known() -> None:
    assert known_config(START, WORK, "sm_90a").depth == 4
    assert known_config(START, WORK, "sm_121a") == START
    assert known_config(START, replace(WORK, rows=2048), "sm_90a") == START
    assert known_config(START, replace(WORK, tokens=2), "sm_90a") == START, "of other fields"


def test_a_gpu_s_own_configuration_counts_before_another_s() -> None:
    def run(machine: str, depth: int) -> TuningRun:
        row = Tuned(WORK, asdict(replace(START, depth=depth)), 3.0)
        return TuningRun("sm_90a", machine, "2026-01-01", "", {}, (row,))

    runs = (run("H200", 1), run("H100", 3))
    for of_any in (runs, runs[::-1]):
        assert known_config(START, WORK, "sm_90a", "H100", of_any).depth == 3
        assert known_config(START, WORK, "sm_90a", "H200", of_any).depth == 1
    assert known_config(START, WORK, "sm_90a", "H20", runs).depth == 3
    assert known_config(START, WORK, "sm_121a", "H100", runs) == START


def test_a_configuration_that_shares_out_nothing_is_not_known() -> None:
    for change in ({"warps": 0}, {"split": 0}, {"warps": 10**30}, {"warps": 6, "split": 4}):
        row = Tuned(WORK, {**asdict(START), **change}, 3.0)
        run = TuningRun("sm_90a", "H100", "2026-01-01", "", {}, (row,))
        assert known_config(START, WORK, "sm_90a", "H100", (run,)) == START, change

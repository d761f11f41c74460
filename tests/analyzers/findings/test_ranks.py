"""Rules about parallel runs: what fires each, and what keeps it quiet."""

from __future__ import annotations

from dataclasses import replace

import pytest

from spark_prof.analyzers.model import ClockRow, Collectives, RankRow, Report
from tests.analyzers.findings.reports import HEALTHY, STEPS, found, kernel
from tests.rows import each_row

HERE = ClockRow(1, 0, True, 0.0, 0.0, 1.0, 500, "collectives")
THERE = replace(HERE, rank=2, same_host=False)
ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


def parallel(slowest: int, held_up_us: float) -> Report:
    rows = (
        RankRow(0, STEPS, 1e5, 9e4, 1e3, 100.0, 100.0, STEPS - slowest, 1.0),
        RankRow(1, STEPS, 1e5, 9e4, 1e3, 10.0, 100.0, slowest, held_up_us),
    )
    return replace(HEALTHY, ranks=rows, collectives=Collectives(500, steps=STEPS, clocks=(HERE,)))


def test_a_rank_that_the_others_wait_for() -> None:
    [finding] = found(parallel(90, 100.0), "straggler-rank")
    assert finding.ms_per_token == pytest.approx(0.09)
    assert "Rank 1 comes last in 90 of 100 steps" in finding.text


@pytest.mark.parametrize(("slowest", "held_up_us"), [(50, 100.0), (90, 10.0), (90, 0.0)])
def test_ranks_that_take_turns_or_hardly_wait(slowest: int, held_up_us: float) -> None:
    assert found(parallel(slowest, held_up_us), "straggler-rank") == []


def test_too_few_steps_and_one_rank_say_nothing() -> None:
    few = replace(parallel(9, 100.0), collectives=Collectives(50, steps=10))
    assert found(few, "straggler-rank") == []
    assert found(HEALTHY, "straggler-rank") == []


def reducing(us: float, *clocks: ClockRow, name: str = ALL_REDUCE) -> Report:
    row = replace(kernel(name, "collective", us * STEPS), calls=10 * STEPS)
    return replace(HEALTHY, kernels=(row,), collectives=Collectives(500, clocks=clocks))


def test_nccl_between_gpus_of_one_host() -> None:
    [finding] = found(reducing(200.0, HERE), "nccl-all-reduce")
    assert finding.ms_per_token == pytest.approx(0.2)
    assert "--disable-custom-all-reduce" in finding.fix


@each_row(
    "quiet",
    [
        reducing(200.0, HERE, THERE),  # between hosts there is nothing else
        reducing(200.0),  # nothing tells that there is one host
        reducing(40.0, HERE),
        reducing(5000.0, HERE),  # messages so large that NCCL is right
        reducing(200.0, HERE, name="void vllm::cross_device_reduce_1stage<c10::BFloat16, 2>(int)"),
    ],
)
def test_all_reduces_that_nothing_else_would_do_better(quiet: Report) -> None:
    assert found(quiet, "nccl-all-reduce") == []

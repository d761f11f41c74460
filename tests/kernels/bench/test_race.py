"""Races: cold copies, wrong results, broken calls, turns; and calls repeated as one unit."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
import torch

from spark_prof.kernels.bench.race import (
    Call,
    RaceSetting,
    Repeated,
    clones,
    largest_relative_l2,
    plan,
    race,
)
from spark_prof.kernels.bench.results import ImplementationResult
from tests.rows import each_row


def test_each_repeat_runs_every_call_in_order(device: str) -> None:
    order = torch.zeros(3, device=device)
    count = torch.zeros(1, device=device)

    def call(number: int) -> torch.Tensor:
        count.add_(1)
        order[number : number + 1].copy_(count)
        return order[number : number + 1].clone()

    runs = Repeated(call, 3, torch.device(device))
    begun = float(count)
    for repeat in range(2):
        assert runs.seconds() > 0
        expected = [begun + 3 * repeat + step for step in (1, 2, 3)]
        assert [float(output) for output in runs.outputs] == expected


def test_what_a_call_leaves_out_stays_poisoned_in_a_graph() -> None:
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    out = torch.zeros(4, device="cuda")

    def half(_: int) -> torch.Tensor:
        out[:2].fill_(1.0)
        return out

    runs = Repeated(half, 1, torch.device("cuda"))
    runs.poison()
    runs.seconds()
    assert runs.outputs[0].isnan().tolist() == [False, False, True, True]


CALLS, SIZE = 4, 64
L2 = 50 << 20


@each_row("size", [1, 600_000, 5_000_000, 66_000_000, 350_000_000])
def test_each_call_finds_its_weights_cold(size: int) -> None:
    planned = plan(size, L2)
    assert planned.copies >= 4
    assert planned.calls % planned.copies == 0
    # The most calls that a graph holds do not push a tiny weight out.
    assert planned.copies * size >= 3 * L2 or planned.copies == 512


@pytest.mark.parametrize("used", [20_000_000, 400_000_000])
def test_of_weights_that_are_read_in_part_the_calls_push_each_other_out(used: int) -> None:
    planned = plan(used, L2, bytes_stored=1_700_000_000)
    assert planned.copies == 4
    assert planned.calls * used >= 3 * L2


def test_quick_work_is_repeated_until_events_can_time_it() -> None:
    assert plan(1_000_000, L2).calls >= 60


class Work:
    """y = 2 x, of inputs that are written before each call."""

    def __init__(self, device: str) -> None:
        self.device = torch.device(device)
        self.source = torch.randn(CALLS, SIZE, device=device)
        self.x = torch.full_like(self.source, torch.nan)

    def write(self, number: int) -> torch.Tensor:
        return self.x[number].copy_(self.source[number])

    def error(self, outputs: Sequence[torch.Tensor]) -> float:
        return largest_relative_l2(outputs, 2 * self.source)

    def race(self, **calls: Call) -> dict[str, ImplementationResult]:
        setting = RaceSetting(CALLS, self.write, self.error, 1e-3, self.device)
        results = race(calls, setting, seconds=0, fewest=3)
        assert [result.contestant for result in results] == list(calls)
        return {result.contestant: result for result in results}


def test_who_is_right_is_timed_and_who_is_wrong_is_not(device: str) -> None:
    work = Work(device)
    kept = [torch.zeros(SIZE, device=device) for _ in range(CALLS)]

    def only_in_part(number: int) -> torch.Tensor:
        kept[number][: SIZE // 2].copy_(2 * work.x[number][: SIZE // 2])
        return kept[number]

    def another_call(number: int) -> torch.Tensor:
        return 2 * work.x[(number + 1) % CALLS]

    found = work.race(
        right=lambda number: 2 * work.x[number],
        half=lambda number: work.x[number],
        nan=lambda number: work.x[number] / 0 * 0,
        part=only_in_part,
        other=another_call,
    )
    right = found["right"]
    assert right.us is not None
    assert right.us.repeats == 3
    assert right.error == 0
    for name in ("half", "nan", "part", "other"):
        assert found[name].us is None
        assert found[name].failed.startswith("wrong result")


def test_a_competitor_that_fails_does_not_stop_the_others(device: str) -> None:
    work = Work(device)

    def broken(number: int) -> torch.Tensor:
        raise ValueError("no such kernel\nand more")

    found = work.race(broken=broken, right=lambda number: 2 * work.x[number])
    assert found["broken"].us is None
    assert found["broken"].failed == "ValueError: no such kernel"
    assert found["right"].us is not None


def test_who_fails_only_while_a_graph_is_captured_is_told_by_its_own_reason(device: str) -> None:
    work = Work(device)
    asked: list[int] = []

    def broken_later(number: int) -> torch.Tensor:
        asked.append(number)
        if len(asked) > 2:
            raise ValueError("not again")
        return 2 * work.x[number]

    found = work.race(broken=broken_later, right=lambda number: 2 * work.x[number])
    assert found["broken"].failed == "ValueError: not again"
    assert found["right"].us is not None


def test_who_becomes_wrong_while_it_is_timed_has_no_time(device: str) -> None:
    work = Work(device)
    count = torch.zeros(1, device=device)

    def worse_and_worse(number: int) -> torch.Tensor:
        count.add_(1)
        return work.x[number] * (2 + (count > 3 * CALLS))

    result = work.race(worse=worse_and_worse)["worse"]
    assert result.us is None
    assert "after 3 repeats" in result.failed


def test_who_cannot_take_part_stays_in_the_results(device: str) -> None:
    work = Work(device)
    absent = ImplementationResult("absent", None, None, "not installed")
    setting = RaceSetting(CALLS, work.write, work.error, 1e-3, work.device)
    assert race({"absent": absent}, setting, seconds=0, fewest=2) == (absent,)


def test_the_error_is_that_of_the_worst_call() -> None:
    right = torch.ones(3, 2, 2)
    outputs = [torch.ones(2, 2), torch.full((2, 2), 1.5), torch.ones(2, 2)]
    assert largest_relative_l2(outputs, right) == pytest.approx(0.5)
    outputs[2] = torch.tensor([[1.0, torch.nan], [1.0, 1.0]])
    assert largest_relative_l2(outputs, right) == math.inf


def test_copies_share_no_memory() -> None:
    pair = (torch.arange(4), "name")
    copies = clones(pair, 3)
    assert copies[0] is pair
    assert len({copy[0].data_ptr() for copy in copies}) == 3
    assert all(torch.equal(copy[0], pair[0]) and copy[1] == "name" for copy in copies)

"""Calls that are repeated as one unit: their outputs, and what poison shows."""

from __future__ import annotations

import pytest
import torch

from spark_prof.kernels.bench.race import repeated
from spark_prof.kernels.bench.results import cache_bytes
from tests.rows import each_row


def test_each_repeat_runs_every_call_in_order(device: str) -> None:
    order = torch.zeros(3, device=device)
    count = torch.zeros(1, device=device)

    def call(number: int) -> torch.Tensor:
        count.add_(1)
        order[number : number + 1].copy_(count)
        return order[number : number + 1].clone()

    runs = repeated(call, 3, torch.device(device))
    begun = float(count)
    for repeat in range(2):
        assert runs.seconds() > 0
        expected = [begun + 3 * repeat + step for step in (1, 2, 3)]
        assert [float(output[0]) for output in runs.outputs] == expected


@each_row("dtype", [torch.bfloat16, torch.float32, torch.float8_e4m3fn, torch.uint8])
def test_poison_is_in_every_output(device: str, dtype: torch.dtype) -> None:
    runs = repeated(
        lambda number: (torch.zeros(8, device=device).to(dtype), torch.zeros(2, device=device)),
        2,
        torch.device(device),
    )
    runs.poison()
    for first, second in runs.outputs:
        wide = first.to(torch.float32)
        assert bool((wide.isnan() | (wide == 255)).all())
        assert bool(second.isnan().all())


def test_what_a_call_leaves_out_stays_poisoned_in_a_graph() -> None:
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    out = torch.zeros(4, device="cuda")

    def half(_: int) -> torch.Tensor:
        out[:2].fill_(1.0)
        return out

    runs = repeated(half, 1, torch.device("cuda"))
    runs.poison()
    runs.seconds()
    assert runs.outputs[0][0].isnan().tolist() == [False, False, True, True]


def test_a_processor_has_no_cache_to_be_cold() -> None:
    assert cache_bytes(torch.device("cpu")) == 0

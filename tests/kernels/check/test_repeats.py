"""Whether a call that gives other bits is told; on a GPU also one that reads too early."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

pytest.importorskip("torch")

import torch

from spark_prof.kernels.check.late import late_rows
from spark_prof.kernels.check.repeats import difference_again, difference_when_late
from spark_prof.kernels.runtime.code import KernelCode
from spark_prof.kernels.runtime.launch import dependent_launches, launch, prepare
from tests.rows import each_row

COPY = """
#include "platform.cuh"
KERNEL hasty(const u32* x, u32* out) {
    const u32 early = x[threadIdx.x];
    start_next_kernel();
    wait_for_previous_kernel();
    out[threadIdx.x] = early;
}
KERNEL patient(const u32* x, u32* out) {
    start_next_kernel();
    wait_for_previous_kernel();
    out[threadIdx.x] = x[threadIdx.x];
}
"""


def test_other_bits_are_told() -> None:
    calls = iter([[1.0, -0.0], [1.0, 0.0]])

    def again() -> tuple[torch.Tensor]:
        return (torch.tensor(next(calls)),)

    first = again()
    assert difference_again(again, first) == "a second run gives other bits"


def test_the_same_bits_are_no_difference() -> None:
    value = torch.tensor([1.0, torch.nan])
    assert difference_again(lambda: (value.clone(),), [value]) == ""


@each_row(("entry", "told"), [("hasty", True), ("patient", False)])
def test_what_reads_before_its_input_is_written_is_told(
    entry: str, told: bool, tmp_path: Path
) -> None:
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    source = tmp_path / "copy.cu"
    source.write_text(COPY)
    code = KernelCode(str(source), entry)
    x = torch.arange(64, dtype=torch.float32, device="cuda").reshape(2, 32)
    prepare([code], x.device)

    def again(arrive: Callable[[], None] = lambda: None) -> tuple[torch.Tensor]:
        out = torch.empty_like(x)
        arrive()
        with dependent_launches():
            launch(code, (1, 1, 1), 64, (x, out))
        return (out,)

    assert difference_again(again, [x.clone()]) == ""
    difference = difference_when_late(again, [x.clone()], late_rows((x,)))
    assert ("before the kernel that writes its input" in difference) == told


class CpuGraph:
    """Stands for a CUDA graph where there is no GPU: what it replays is added by hand."""

    capturing: CpuGraph

    def __init__(self) -> None:
        self.nodes: list[Callable[[], object]] = []

    def replay(self) -> None:
        for node in self.nodes:
            node()


@contextmanager
def capture(graph: CpuGraph) -> Iterator[None]:
    CpuGraph.capturing = graph
    yield


@each_row(("early", "told"), [(True, True), (False, False)])
def test_a_second_kernel_that_reads_what_the_first_has_not_written_is_told(
    early: bool, told: bool, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its memory holds what the same call wrote there in the graph before: the right bits."""
    if device != "cpu":
        pytest.skip("a graph of the CPU")
    monkeypatch.setattr(torch.cuda, "CUDAGraph", CpuGraph)
    monkeypatch.setattr(torch.cuda, "graph", capture)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda _: None)
    x = torch.arange(16, dtype=torch.float32).reshape(2, 8)
    between, out = 2 * x, torch.empty_like(x)

    def both_kernels() -> None:
        before = between.clone()
        torch.mul(x, 2, out=between)
        torch.add(before if early else between, 1, out=out)

    def again(arrive: Callable[[], None]) -> tuple[torch.Tensor]:
        CpuGraph.capturing.nodes += [arrive, both_kernels]
        return (out,)

    right = x.clone()
    difference = difference_when_late(again, [2 * x + 1], late_rows((x,)))
    assert bool(difference) == told
    assert torch.equal(x, right)

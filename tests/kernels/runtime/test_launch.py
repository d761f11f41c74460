"""One call launches a kernel where its tensors lie, with the same result everywhere."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from spark_prof.kernels.kernel_error import KernelError  # noqa: E402
from spark_prof.kernels.runtime.code import KernelCode  # noqa: E402
from spark_prof.kernels.runtime.launch import (  # noqa: E402
    RUNNERS,
    dependent_launches,
    launch,
    prepare,
)
from tests.rows import each_row  # noqa: E402

SOURCE = """
#include "platform.cuh"

// Each argument, and where in the grid this block is: what the host said is what arrives.
KERNEL tell(u32* out, const u8* pointer, int whole, float real, const float* null) {
    if (threadIdx.x == 0) {
        u32* own = out + 4 * (blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z));
        own[0] = static_cast<u32>(whole);
        own[1] = bits_of_float(real);
        own[2] = pointer[whole & 7] + (null ? 1000u : 0u);
        own[3] = blockDim.x;
    }
}

KERNEL add_one(u32* out, int n) {
    wait_for_previous_kernel();
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] += 1;
    start_next_kernel();
}
"""


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp("kernels") / "launched.cu"
    path.write_text(SOURCE)
    return path


def code(source: Path, entry: str) -> KernelCode:
    return KernelCode(str(source), entry)


@each_row("whole", [0, 7, -1, 2**31 - 1, -(2**31)])
@each_row("real", [0.0, -0.0, 1.5, 0.1, float("inf"), float("nan"), 1e-45])
def test_arguments_arrive_as_they_are(device: str, source: Path, whole: int, real: float) -> None:
    out = torch.full((2 * 3 * 4, 4), -1, dtype=torch.int32, device=device)
    data = torch.arange(100, 108, dtype=torch.uint8, device=device)
    launch(code(source, "tell"), (2, 3, 4), 32, [out, data, whole, real, None])
    bits = torch.tensor(real, dtype=torch.float32).view(torch.int32).item()
    assert (out[:, 0] == whole).all()
    assert (out[:, 1] == bits).all() or torch.isnan(out[:, 1].cpu().view(torch.float32)).all()
    assert (out[:, 2] == 100 + (whole & 7)).all()
    assert (out[:, 3] == 32).all()


@each_row("dependent", [False, True])
def test_launches_follow_each_other(device: str, source: Path, dependent: bool) -> None:
    counts = torch.zeros(1000, dtype=torch.int32, device=device)
    prepare([code(source, "add_one")], torch.device(device))
    for _ in range(20):
        launch(code(source, "add_one"), (8, 1, 1), 128, [counts, 1000], dependent=dependent)
    assert (counts == 20).all()


def test_launches_of_a_check_start_as_early_as_those_of_an_engine(
    source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    launched: list[bool] = []
    monkeypatch.setitem(RUNNERS, "cpu", lambda *arguments: launched.append(arguments[-1]))

    def once() -> None:
        launch(code(source, "add_one"), (1, 1, 1), 32, [torch.zeros(4), 4])

    once()
    with dependent_launches():
        once()
    with pytest.raises(ZeroDivisionError), dependent_launches():
        _ = 1 / 0
    once()
    assert launched == [False, True, False]


def test_tensors_elsewhere_are_refused(source: Path) -> None:
    nowhere = torch.empty(4, device="meta")
    with pytest.raises(KernelError, match="on meta, not on a GPU"):
        launch(code(source, "add_one"), (1, 1, 1), 32, [nowhere, 4])
    with pytest.raises(KernelError, match="tensors on cpu and on meta"):
        launch(code(source, "add_one"), (1, 1, 1), 32, [torch.zeros(4), nowhere])

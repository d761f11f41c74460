"""Where a kernel's tests run: on the CPU, and on a GPU where there is one."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from tests.emulator.compiler import compiler


@pytest.fixture(params=["cpu", "cuda"])
def device(request: pytest.FixtureRequest) -> str:
    """Each device that kernels can be launched on here."""
    torch = pytest.importorskip("torch")
    if request.param == "cpu" and compiler() is None:
        pytest.skip("no C++ compiler: kernels do not run on the CPU")
    if request.param == "cuda" and not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    return str(request.param)


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Keeps torch to one thread: its threads wait longer for each other than small sums take."""
    torch = sys.modules.get("torch")
    before = torch.get_num_threads() if torch else 0
    if torch:
        torch.set_num_threads(1)
    yield
    if torch:
        torch.set_num_threads(before)

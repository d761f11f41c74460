"""Where a kernel's tests run: on the CPU, and on a GPU where there is one."""

from __future__ import annotations

import pytest

from spark_prof.kernels.runtime.cpu_compiler import compiler


@pytest.fixture(params=["cpu", "cuda"])
def device(request: pytest.FixtureRequest) -> str:
    """Each device that kernels can be launched on here."""
    torch = pytest.importorskip("torch")
    if request.param == "cpu" and compiler() is None:
        pytest.skip("no C++ compiler: kernels do not run on the CPU")
    if request.param == "cuda" and not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    return str(request.param)

"""What a kernel does before it waits for those before it must not depend on them."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from spark_prof.kernels.kernel_error import KernelError  # noqa: E402
from spark_prof.kernels.runtime.code import KernelCode  # noqa: E402
from tests.emulator.compiler import compiler  # noqa: E402
from tests.emulator.run import run_on_cpu  # noqa: E402
from tests.rows import each_row  # noqa: E402

pytestmark = pytest.mark.skipif(compiler() is None, reason="no C++ compiler")

SOURCE = """
#include "platform.cuh"

// A letter of `order` after the other: read, write, start the next kernel, wait.
KERNEL steps(const int* from, int* to, int order) {
    int sum = 0;
    for (int left = order; left; left >>= 8) {
        const int step = left & 255;
        if (step == 'r') sum += *from;
        if (step == 'w') *to = sum;
        if (step == 's') start_next_kernel();
        if (step == 'v') wait_for_previous_kernel();
    }
}
"""


@pytest.fixture(scope="module")
def code(tmp_path_factory: pytest.TempPathFactory) -> KernelCode:
    path: Path = tmp_path_factory.mktemp("in_flight") / "steps.cu"
    path.write_text(SOURCE)
    return KernelCode(str(path), "steps")


EARLY = r"steps: its tensor \d is used too early: .*steps may not be through with it"
NEVER = "may start early and never waits"
Launch = tuple[str, str, str]


@each_row(
    ("launches", "says"),
    [
        # A result is not read before the wait.
        *(([("a", "b", "vrw"), ("b", "c", steps)], EARLY) for steps in ("rv", "rvw", "rsv")),
        # Nothing is written before the wait that is in use.
        *(([("a", "b", steps), ("c", "a", "wv")], EARLY) for steps in ("vrw", "vr", "rv")),
        # A kernel that starts the next one too early lets in what was before it.
        ([("a", "b", "vrw"), ("c", "d", "svr"), ("b", "c", "rv")], EARLY),
        ([("a", "b", "s")], NEVER),
        # What may overlap: after the wait, others' memory, both read, two before, which is over.
        ([("a", "b", "vrw"), ("b", "c", "vrw"), ("c", "a", "svrw")], ""),
        ([("a", "b", "vrw"), ("c", "d", "rvw")], ""),
        ([("a", "b", "rv"), ("a", "c", "rvw")], ""),
        ([("a", "b", "vrw"), ("c", "d", "vsr"), ("b", "e", "rv")], ""),
        # A launch that is not dependent comes after all, and only those after it overlap with it.
        ([("a", "b", "svw"), ("b", "a", "RW"), ("a", "c", "rv")], EARLY),
        # Memory that was freed is not in use.
        ([("a", "b", "vrw"), ("b", "", ""), ("b", "c", "rv")], ""),
    ],
)
def test_what_a_kernel_does_before_its_wait(
    code: KernelCode, launches: list[Launch], says: str
) -> None:
    """Launches of `steps` on tensors by a letter; capitals are not dependent, no steps free one."""
    tensors = {name: torch.zeros(1, dtype=torch.int32) for name in "abcdef"}
    run_on_cpu(code, (2, 1, 1), 1, [tensors["e"], tensors["f"], ord("r")])
    with pytest.raises(KernelError, match=says) if says else nullcontext():
        for source, target, steps in launches:
            if not steps:
                del tensors[source]
                tensors[source] = torch.zeros(1, dtype=torch.int32)
                continue
            order = int.from_bytes(steps.lower().encode(), "little")
            given = [tensors[source], tensors[target], order]
            run_on_cpu(code, (2, 1, 1), 1, given, dependent=steps.islower())

"""What a kernel does before it waits for those before it must not depend on them."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from spark_prof.kernels.kernel_error import KernelError  # noqa: E402
from spark_prof.kernels.runtime.code import KernelCode  # noqa: E402
from tests.emulator.compiler import compiler  # noqa: E402
from tests.emulator.run import run_on_cpu  # noqa: E402

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


class Stream:
    """Launches `steps` on tensors that are called by a letter."""

    def __init__(self, code: KernelCode) -> None:
        self._code = code
        self._tensors = {name: torch.zeros(1, dtype=torch.int32) for name in "abcdef"}

    def launch(self, source: str, target: str, steps: str, dependent: bool = True) -> None:
        order = int.from_bytes(steps.encode(), "little")
        arguments = [self._tensors[source], self._tensors[target], order]
        run_on_cpu(self._code, (2, 1, 1), 1, arguments, dependent=dependent)

    def replace(self, name: str) -> None:
        """Frees a tensor and makes another one, which lies in the same place as a rule."""
        del self._tensors[name]
        self._tensors[name] = torch.zeros(1, dtype=torch.int32)


@pytest.fixture
def stream(code: KernelCode) -> Stream:
    stream = Stream(code)
    stream.launch("e", "f", "r", dependent=False)
    return stream


EARLY = r"steps: its tensor \d is used too early: .*steps may not be through with it"


@pytest.mark.parametrize("steps", ["rv", "rvw", "rsv"])
def test_a_result_is_not_read_before_the_wait(stream: Stream, steps: str) -> None:
    stream.launch("a", "b", "vrw")
    with pytest.raises(KernelError, match=EARLY):
        stream.launch("b", "c", steps)


@pytest.mark.parametrize("before", ["vrw", "vr", "rv"])
def test_nothing_is_written_before_the_wait_that_is_in_use(stream: Stream, before: str) -> None:
    stream.launch("a", "b", before)
    with pytest.raises(KernelError, match=EARLY):
        stream.launch("c", "a", "wv")


def test_a_kernel_that_starts_the_next_too_early_lets_in_what_was_before(stream: Stream) -> None:
    stream.launch("a", "b", "vrw")
    stream.launch("c", "d", "svr")
    with pytest.raises(KernelError, match=EARLY):
        stream.launch("b", "c", "rv")


@pytest.mark.parametrize(
    "launches",
    [
        [("a", "b", "vrw"), ("b", "c", "vrw"), ("c", "a", "svrw")],
        [("a", "b", "vrw"), ("c", "d", "rvw")],
        [("a", "b", "rv"), ("a", "c", "rvw")],
        [("a", "b", "vrw"), ("c", "d", "vsr"), ("b", "e", "rv")],
    ],
    ids=["after the wait", "of others", "both read", "two before, which is over"],
)
def test_what_may_overlap_is_let_through(
    stream: Stream, launches: list[tuple[str, str, str]]
) -> None:
    for source, target, steps in launches:
        stream.launch(source, target, steps)


def test_a_launch_that_is_not_dependent_comes_after_all(stream: Stream) -> None:
    stream.launch("a", "b", "svw")
    stream.launch("b", "a", "rw", dependent=False)
    with pytest.raises(KernelError, match=EARLY):
        stream.launch("a", "c", "rv")


def test_a_dependent_launch_has_to_wait(stream: Stream) -> None:
    with pytest.raises(KernelError, match="may start early and never waits"):
        stream.launch("a", "b", "s")


def test_memory_that_was_freed_is_not_in_use(stream: Stream) -> None:
    stream.launch("a", "b", "vrw")
    stream.replace("b")
    stream.launch("b", "c", "rv")

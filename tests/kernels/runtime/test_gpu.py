"""What only a GPU can show: streams, graphs, threads, and what CUDA refuses."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    pytest.skip("no CUDA device", allow_module_level=True)

from spark_prof.kernels.kernel_error import KernelError  # noqa: E402
from spark_prof.kernels.runtime.code import KernelCode  # noqa: E402
from spark_prof.kernels.runtime.launch import launch, prepare  # noqa: E402

SOURCE = """
#include "platform.cuh"
KERNEL add(u32* out, int n, int what) {
    wait_for_previous_kernel();
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] += what * WEIGHT;
    start_next_kernel();
}
"""
N = 1000


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp("kernels") / "add.cu"
    path.write_text(SOURCE)
    return path


def add(source: Path, weight: int) -> KernelCode:
    return KernelCode(str(source), "add", (("WEIGHT", weight),))


def counts() -> torch.Tensor:
    return torch.zeros(N, dtype=torch.int32, device="cuda")


def run(code: KernelCode, out: torch.Tensor, what: int, dependent: bool = False) -> None:
    launch(code, (8, 1, 1), 128, [out, N, what], dependent=dependent)


@pytest.mark.parametrize("ready", [False, True], ids=["loaded in the capture", "prepared"])
@pytest.mark.parametrize("dependent", [False, True])
def test_a_graph_replays_its_launches(source: Path, ready: bool, dependent: bool) -> None:
    code = add(source, 10 + 2 * ready + dependent)
    weight = code.defines[0][1]
    if ready:
        prepare([code], torch.device("cuda"))
    out = counts()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for what in (1, 2, 3):
            run(code, out, what, dependent)
    assert (out == 0).all(), "a captured launch ran"
    for replay in (1, 2, 3):
        graph.replay()
        assert (out == replay * 6 * weight).all()


def test_launches_are_on_the_current_stream(source: Path) -> None:
    """A stream that is kept busy holds its launch back; the others go on."""
    code, out, other = add(source, 1), counts(), counts()
    prepare([code], torch.device("cuda"))
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(200_000_000)
        run(code, out, 1)
    run(code, other, 1)
    torch.cuda.current_stream().synchronize()
    assert not stream.query()
    assert (other == 1).all()
    stream.synchronize()
    assert (out == 1).all()


def test_threads_without_a_context_load_and_launch_at_once(source: Path) -> None:
    outs = [counts() for _ in range(8)]
    torch.cuda.synchronize()
    failures: list[BaseException] = []

    def work(out: torch.Tensor, number: int) -> None:
        try:
            for turn in range(100):
                run(add(source, 30 + number % 2), out, turn % 7)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(out, number)) for number, out in enumerate(outs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    torch.cuda.synchronize()
    assert not failures
    total = sum(turn % 7 for turn in range(100))
    for number, out in enumerate(outs):
        assert (out == total * (30 + number % 2)).all()


@pytest.mark.parametrize(
    ("grid", "block"), [((0, 1, 1), 32), ((1, 70_000, 1), 32), ((1, 1, 1), 1025)]
)
def test_what_cuda_refuses_is_told_and_the_next_launch_works(
    source: Path, grid: tuple[int, int, int], block: int
) -> None:
    code, out = add(source, 1), counts()
    with pytest.raises(KernelError, match=r"add\.cu:add WEIGHT=1.*CUDA_ERROR_"):
        launch(code, grid, block, [out, N, 1])
    run(code, out, 5)
    assert (out == 5).all()


def test_prepare_tells_what_does_not_compile(source: Path) -> None:
    bad = KernelCode(str(source), "add")
    with pytest.raises(KernelError, match='"WEIGHT" is undefined'):
        prepare([add(source, 1), bad], torch.device("cuda"))

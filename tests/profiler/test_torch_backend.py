"""PyTorch's profiler on the CPU: one readable trace a piece, and nothing running afterwards."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from spark_prof.profiler.backends.torch import TorchBackend  # noqa: E402
from spark_prof.traces.chunks import kineto_name  # noqa: E402
from spark_prof.traces.readers.kineto import read_kineto  # noqa: E402

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="watches operators on a CPU only")


@pytest.fixture
def backend(tmp_path: Path) -> Any:
    made = TorchBackend(tmp_path, "rank0")
    yield made
    made.discard()


def multiply() -> None:
    torch.ones(4, 4) @ torch.ones(4, 4)


def operators(folder: Path, piece: int) -> list[str]:
    trace = read_kineto(folder / kineto_name("rank0", piece))
    return [str(name) for name in trace.operators["name"]]


def running() -> bool:
    return bool(torch.autograd._profiler_enabled())


def test_each_piece_holds_the_operators_that_ran_in_it(
    backend: TorchBackend, tmp_path: Path
) -> None:
    backend.start(0)
    assert running()
    multiply()
    backend.stop()
    assert not running()
    assert "aten::mm" in operators(tmp_path, 0)
    assert [path.name for path in tmp_path.iterdir()] == ["rank0.00000.kineto.json"]
    torch.ones(4).cumsum(0)
    backend.start(1)
    torch.ones(4).sort()
    backend.stop()
    found = operators(tmp_path, 1)
    assert "aten::sort" in found
    assert not {"aten::mm", "aten::cumsum"} & set(found)


def test_a_discarded_piece_leaves_nothing_and_a_second_start_works(
    backend: TorchBackend, tmp_path: Path
) -> None:
    backend.start(0)
    multiply()
    backend.discard()
    assert not running()
    backend.stop()
    assert list(tmp_path.iterdir()) == []
    backend.start(1)
    multiply()
    backend.stop()
    assert "aten::mm" in operators(tmp_path, 1)


def test_a_folder_that_vanished_leaves_no_profiler_running(
    tmp_path: Path,
) -> None:
    backend = TorchBackend(tmp_path / "gone", "rank0")
    backend.start(0)
    multiply()
    with pytest.raises(OSError, match="gone"):
        backend.stop()
    assert not running()
    (tmp_path / "gone").mkdir()
    backend.start(1)
    backend.stop()
    assert (tmp_path / "gone" / kineto_name("rank0", 1)).exists()


def test_what_kineto_kept_goes_without_the_garbage_collector(
    backend: TorchBackend, tmp_path: Path
) -> None:
    """vLLM freezes what it has loaded, and collects the oldest generation hardly ever."""
    from torch.autograd.profiler import profile

    def kept() -> int:
        return sum(isinstance(each, profile) for each in gc.get_objects())

    gc.disable()
    try:
        before = kept()
        for piece in range(3):
            backend.start(piece)
            multiply()
            backend.stop()
        assert kept() == before
    finally:
        gc.enable()
    assert len(list(tmp_path.iterdir())) == 3

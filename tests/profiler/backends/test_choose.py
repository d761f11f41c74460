"""Which backend watches: what was asked for, what works here, and what is said if it does not."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_prof.profiler.backends import choose
from spark_prof.profiler.backends.choose import choose_backend, early_native
from spark_prof.profiler.backends.cupti import CuptiBackend
from spark_prof.profiler.backends.native import Native, NativeError
from spark_prof.profiler.process import Process
from spark_prof.profiler.settings import Settings
from spark_prof.traces.chunk_files import json_object, log_lines
from spark_prof.traces.chunks import REFUSED_FILE, cubins_folder

from .conftest import On
from .fake import FakeCupti


def wanted(tmp_path: Path, backend: str) -> tuple[Settings, Process]:
    settings = Settings(str(tmp_path / "b"), backend=backend)
    return settings, Process(settings, "rank0", 0)


def log(process: Process) -> list[str]:
    return [row["message"] for row in log_lines(process.folder)]


def refusal(process: Process) -> str:
    return str(json_object(process.folder / REFUSED_FILE).get("reason", ""))


@pytest.mark.parametrize("backend", ["auto", "cupti"])
def test_cupti_is_first_on_an_nvidia_gpu(
    tmp_path: Path, on_nvidia: On, works: Native, cupti: FakeCupti, backend: str
) -> None:
    settings, process = wanted(tmp_path, backend)
    assert early_native(settings) is works
    assert cubins_folder(settings.pieces).is_dir()
    cupti.module(b"code")
    assert [path.read_bytes() for path in cubins_folder(settings.pieces).iterdir()] == [b"code"]
    name, found = choose_backend(settings, process)
    assert (name, type(found)) == ("cupti", CuptiBackend)
    assert (log(process), refusal(process)) == ([], "")


def test_torch_takes_its_place_and_the_log_says_why(
    tmp_path: Path, on_nvidia: On, fails: None
) -> None:
    settings, process = wanted(tmp_path, "auto")
    assert early_native(settings) is None
    name, _ = choose_backend(settings, process)
    assert name == "torch"
    [line] = log(process)
    assert "another profiler holds it" in line


def test_cupti_by_name_is_refused_where_it_cannot_work(
    tmp_path: Path, on_nvidia: On, fails: None
) -> None:
    settings, process = wanted(tmp_path, "cupti")
    with pytest.raises(NativeError, match="another profiler"):
        early_native(settings)
    assert choose_backend(settings, process) == ("none", None)
    assert refusal(process) == "the CUPTI backend cannot work: another profiler holds it"


def test_cupti_by_name_is_refused_without_an_nvidia_gpu(tmp_path: Path, on_nvidia: On) -> None:
    on_nvidia(False)
    settings, process = wanted(tmp_path, "cupti")
    assert early_native(settings) is None
    assert choose_backend(settings, process) == ("none", None)
    assert "needs an NVIDIA GPU" in refusal(process)


@pytest.mark.parametrize(
    ("backend", "cuda", "expected"),
    [
        ("auto", False, "torch"),
        ("torch", True, "torch"),
        ("torch", False, "torch"),
        ("nsys", True, "nsys"),
        ("none", True, "none"),
    ],
)
def test_others_leave_cupti_alone(
    tmp_path: Path, on_nvidia: On, monkeypatch: pytest.MonkeyPatch, backend: str, cuda: bool,
    expected: str,
) -> None:  # fmt: skip
    def load(_: Path) -> Native:
        pytest.fail("CUPTI was asked for")

    monkeypatch.setattr(choose, "load_native", load)
    on_nvidia(cuda)
    settings, process = wanted(tmp_path, backend)
    assert early_native(settings) is None
    name, found = choose_backend(settings, process)
    assert name == expected
    assert (found is None) == (expected == "none")
    assert (log(process), refusal(process)) == ([], "")

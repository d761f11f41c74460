"""Finding a libcupti that can sample counters."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path

import pytest

from spark_prof.profiler import launcher
from spark_prof.profiler.commands import Command
from spark_prof.profiler.launcher import _launch, newest_cupti, with_cupti
from spark_prof.profiler.settings import Settings


def toolkit(root: Path, name: str, library: bool = True) -> Path:
    folder = root / name / "extras" / "CUPTI" / "lib64"
    folder.mkdir(parents=True)
    if library:
        (folder / "libcupti.so.13").touch()
    return folder


@pytest.fixture
def wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An installed nvidia-cuda-cupti 13.5.25; its folder."""
    site = tmp_path / "site"
    lib = site / "nvidia" / "cu13" / "lib"
    lib.mkdir(parents=True)
    (lib / "libcupti.so.13").touch()
    info = site / "nvidia_cuda_cupti-13.5.25.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Name: nvidia-cuda-cupti\nVersion: 13.5.25\n")
    (info / "RECORD").write_text("nvidia/cu13/lib/libcupti.so.13,,\n")
    path = importlib.metadata.PathDistribution(info)
    monkeypatch.setattr(launcher, "distribution", lambda _: path)
    return lib


def test_the_newest_wins(tmp_path: Path, wheel: Path) -> None:
    toolkit(tmp_path, "cuda-13.4")
    assert newest_cupti(tmp_path) == wheel
    newer = toolkit(tmp_path, "cuda-13.6")
    assert newest_cupti(tmp_path) == newer


def test_old_and_empty_toolkits_do_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def absent(name: str) -> None:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(launcher, "distribution", absent)
    toolkit(tmp_path, "cuda-13.0")
    toolkit(tmp_path, "cuda-13.5", library=False)
    toolkit(tmp_path, "cuda-latest")
    assert newest_cupti(tmp_path) is None
    good = toolkit(tmp_path, "cuda-13.4")
    assert newest_cupti(tmp_path) == good


def test_it_comes_before_what_the_user_had() -> None:
    spawn = {"VLLM_WORKER_MULTIPROC_METHOD": "spawn"}
    assert with_cupti({"A": "b"}, Path("/n")) == {"A": "b", "LD_LIBRARY_PATH": "/n"} | spawn
    fork = {"VLLM_WORKER_MULTIPROC_METHOD": "fork"}
    assert with_cupti(fork, Path("/n")) == fork | {"LD_LIBRARY_PATH": "/n"}
    before = {"LD_LIBRARY_PATH": "/o:/p"}
    assert with_cupti(before, Path("/n"))["LD_LIBRARY_PATH"] == "/n:/o:/p"


def test_only_a_recording_of_counters_gets_it(tmp_path: Path, wheel: Path) -> None:
    for wanted in (True, False):
        settings = Settings(str(tmp_path / "b"), counters=wanted)
        command = Command(("python", "x.py"), "python")
        _, environment = _launch(command, settings, tmp_path, {"PATH": "/bin"})
        assert environment.get("LD_LIBRARY_PATH") == (str(wheel) if wanted else None)

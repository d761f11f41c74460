"""scripts/setup.py, with pip and the machine faked."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tests.scripts.loading import load

CPU = {"version": "2.13.0+cpu", "requires_dist": ["filelock", "jinja2"]}
CUDA = {"version": "2.13.0", "requires_dist": ["filelock", "nvidia-cudnn-cu13; sys_platform"]}


class Machine:
    """What the faked machine has, and what pip was told to do."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.gpu = False
        self.importable = False
        self.torch = CPU
        self.failing: tuple[str, ...] = ()

    def pip(self, *words: str) -> str:
        line = " ".join(words)
        if "--dry-run" in words:
            return "Some notice\n" + json.dumps({"install": [{"metadata": self.torch}]})
        self.told.append(line)
        if any(word in line for word in self.failing):
            raise self.error(f"No matching distribution for {line}; see the log")
        return ""

    error: type[Exception] = Exception


@pytest.fixture
def setup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    module = load("scripts/setup.py")
    monkeypatch.setattr(module, "VENV", tmp_path)
    monkeypatch.setattr(module, "NO_VLLM", tmp_path / "no-vllm")
    monkeypatch.setattr(module, "make_venv", lambda: None)
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(module.platform, "machine", lambda: "aarch64")
    return module


@pytest.fixture
def machine(setup: ModuleType, monkeypatch: pytest.MonkeyPatch) -> Machine:
    found = Machine()
    found.error = setup.SetupError
    monkeypatch.setattr(setup, "pip", found.pip)
    monkeypatch.setattr(setup, "has_gpu", lambda: found.gpu)
    monkeypatch.setattr(setup, "can_import", lambda *_: found.importable)
    return found


def test_torch_comes_first_and_cuda_builds_go(setup: ModuleType, machine: Machine) -> None:
    assert setup.main(["vllm"]) == 0
    assert machine.told == [
        "install --editable .",
        "install torch==2.13.0",
        "install --editable .[cpu]",
        "uninstall --yes torchvision torchaudio torchcodec",
    ]


def test_a_cuda_torch_is_never_installed(setup: ModuleType, machine: Machine) -> None:
    machine.torch = CUDA
    assert setup.main(["vllm"]) == 0
    assert machine.told[1] == f"install --extra-index-url {setup.CPU_INDEX} torch==2.13.0+cpu"


def test_a_gpu_takes_the_vllm_that_is_there(setup: ModuleType, machine: Machine) -> None:
    machine.gpu = machine.importable = True
    assert setup.main(["vllm"]) == 0
    assert machine.told == ["install --editable ."]


def test_a_gpu_without_vllm_installs_it(setup: ModuleType, machine: Machine) -> None:
    machine.gpu = True
    assert setup.main(["vllm"]) == 0
    assert machine.told[1:] == ["install --editable .[vllm]"]


def test_no_vllm_at_all_is_said_and_no_error(
    setup: ModuleType, machine: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    machine.gpu, machine.failing = True, ("[vllm]", "torch")
    assert setup.main(["vllm"]) == 0
    assert "going on with analysis only" in capsys.readouterr().out
    assert "No matching distribution" in setup.NO_VLLM.read_text()


def test_a_failed_install_is_one_line(
    setup: ModuleType, machine: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    machine.failing = ("--editable",)
    assert setup.main([]) == 1
    assert capsys.readouterr().err.count("\n") == 1


def test_an_old_python_is_one_line(
    setup: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "version_info", (3, 10, 4))
    assert setup.main([]) == 1
    assert "needs Python 3.11 or newer" in capsys.readouterr().err

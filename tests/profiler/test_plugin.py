"""What vLLM's loading of the plugin does to a vLLM made by hand, and what it never does."""

from __future__ import annotations

import json
import logging
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from spark_prof import plugin
from spark_prof.plugin import install
from spark_prof.profiler import control
from spark_prof.profiler.settings import ENVIRONMENT, Settings
from spark_prof.profiler.vllm_names import SCHEDULER, WORKER
from spark_prof.traces.chunks import REFUSED_FILE, pieces_folder
from tests.rows import each_row

from . import fakes


class Vllm:
    """The fake package's two classes, and what was constructed with which arguments."""

    def __init__(self) -> None:
        class WorkerBase(fakes.Worker):
            def __init__(self, name: str, *, local: int = 0) -> None:
                if name == "broken":
                    raise MemoryError("no memory")
                super().__init__()
                self.arguments = (name, local)

        class Scheduler:
            def __init__(self) -> None:
                self.vllm_config = fakes.config()

        self.worker: Any = WorkerBase
        self.scheduler: Any = Scheduler
        self.plain = (WorkerBase.__init__, Scheduler.__init__)

    @property
    def touched(self) -> bool:
        return (self.worker.__init__, self.scheduler.__init__) != self.plain


@pytest.fixture
def vllm(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Vllm:
    """A fake vLLM 0.32.0 in sys.modules."""
    made = Vllm()
    for name, owner in ((WORKER[0], made.worker), (SCHEDULER[0], made.scheduler)):
        parts = name.split(".")
        for depth in range(1, len(parts) + 1):
            path = ".".join(parts[:depth])
            monkeypatch.setitem(sys.modules, path, ModuleType(path))
        setattr(sys.modules[name], owner.__name__, owner)
    monkeypatch.setattr(sys.modules["vllm"], "__version__", "0.32.0", raising=False)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.delenv(ENVIRONMENT, raising=False)
    return made


@pytest.fixture
def controls(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """The controls that the plugin makes: they take notes, and start no thread."""
    made: list[Any] = []

    class Notes:
        def __init__(self) -> None:
            self.workers: list[Any] = []
            self.schedulers: list[Any] = []
            made.append(self)

        def add_worker(self, worker: Any, settings: Settings | None) -> None:
            self.workers.append((worker, settings))

        def add_scheduler(self, scheduler: Any, settings: Settings | None) -> None:
            self.schedulers.append((scheduler, settings))

    monkeypatch.setattr(plugin, "Control", Notes)
    return made


def refusal(bundle: Path) -> str:
    reason: str = json.loads((pieces_folder(bundle) / REFUSED_FILE).read_text())["reason"]
    return reason


def test_off_does_not_even_ask_for_vllm(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(ENVIRONMENT, "off")
    monkeypatch.setitem(sys.modules, "vllm", None)
    install()
    assert caplog.records == []


def test_workers_and_schedulers_become_known(vllm: Vllm, controls: list[Any]) -> None:
    install()
    worker, scheduler = vllm.worker("a", local=3), vllm.scheduler()
    assert worker.arguments == ("a", 3)
    assert controls[0].workers == [(worker, None)]
    assert controls[0].schedulers == [(scheduler, None)]


def test_subclasses_become_known_once_however_often_it_is_installed(
    vllm: Vllm, controls: list[Any]
) -> None:
    class GpuWorker(vllm.worker):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__("a")

    install()
    wrapped = (vllm.worker.__init__, vllm.scheduler.__init__)
    install()
    assert (vllm.worker.__init__, vllm.scheduler.__init__) == wrapped
    worker = GpuWorker()
    assert [known for made in controls for known, _ in made.workers] == [worker]


@each_row("version", ["0.23.1", "0.34.0", "1.0.0", "dev"])
def test_an_unsupported_vllm_is_refused_and_left_alone(
    vllm: Vllm, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, version: str
) -> None:
    monkeypatch.setenv(ENVIRONMENT, Settings(str(tmp_path / "b")).to_json())
    monkeypatch.setattr(sys.modules["vllm"], "__version__", version)
    install()
    assert not vllm.touched
    assert refusal(tmp_path / "b") == f"vLLM {version} is not supported; 0.24 to 0.33 are"
    line = (pieces_folder(tmp_path / "b") / f"pid{os.getpid()}.log.jsonl").read_text()
    assert json.loads(line)["message"] == refusal(tmp_path / "b")


@pytest.mark.parametrize("missing", ["vllm", WORKER[0], SCHEDULER[0]])
def test_a_vllm_without_its_parts_is_refused(
    vllm: Vllm, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, missing: str
) -> None:
    monkeypatch.setenv(ENVIRONMENT, Settings(str(tmp_path / "b")).to_json())
    monkeypatch.setitem(sys.modules, missing, None)
    install()
    assert missing in refusal(tmp_path / "b")


@pytest.mark.parametrize("text", ["{", "{}", '{"steps": 1}', '{"bundle": 3}'])
def test_settings_that_are_none_are_a_warning(
    vllm: Vllm, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, text: str
) -> None:
    monkeypatch.setenv(ENVIRONMENT, text)
    install()
    assert not vllm.touched
    assert ["spark-prof is off" in record.getMessage() for record in caplog.records] == [True]


def test_a_refusal_that_cannot_be_written_is_a_warning(
    vllm: Vllm, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv(ENVIRONMENT, Settings(str(tmp_path / "file" / "b")).to_json())
    monkeypatch.setattr(sys.modules["vllm"], "__version__", "0.1.0")
    install()
    assert ["cannot write" in record.getMessage() for record in caplog.records] == [True]


@pytest.mark.parametrize("what", ["worker", "scheduler"])
def test_a_failing_constructor_hook_never_raises(
    vllm: Vllm, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, what: str,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    (tmp_path / "file").touch()  # where the bundle's folder should come
    monkeypatch.setattr(control.Control, "_watch", lambda self: None)  # starts no thread
    monkeypatch.setenv(ENVIRONMENT, Settings(str(tmp_path / "file" / "b")).to_json())
    caplog.set_level(logging.WARNING, "spark_prof")
    install()
    made = vllm.worker("a") if what == "worker" else vllm.scheduler()
    assert made.vllm_config.model_config.model == "tiny"
    assert ["does not record" in record.getMessage() for record in caplog.records] == [True]


def test_an_exception_of_vllm_s_constructor_passes(vllm: Vllm, controls: list[Any]) -> None:
    install()
    with pytest.raises(MemoryError, match="no memory"):
        vllm.worker("broken")
    assert controls[0].workers == []

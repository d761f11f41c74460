"""Variables that vLLM shall copy into workers that Ray starts."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from spark_prof.profiler import ray
from spark_prof.profiler.ray import (
    LISTED,
    finish_recordings,
    flush_before_shutdown,
    with_ray_copies,
)
from spark_prof.profiler.vllm_names import ENGINE_CORE
from tests.rows import each_row


@each_row(
    ("before", "after"),
    [
        (None, "SPARK_PROF"),
        ("", "SPARK_PROF"),
        (" A ,B,", "A,B,SPARK_PROF"),
        ("SPARK_PROF", "SPARK_PROF"),
        ("A, SPARK_PROF", "A,SPARK_PROF"),
    ],
)
def test_what_was_listed_stays(before: str | None, after: str) -> None:
    environment = {"X": "1"} | ({} if before is None else {LISTED: before})
    assert with_ray_copies(environment, "SPARK_PROF") == {"X": "1", LISTED: after}


@pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed here")
def test_vllm_reads_that_list(monkeypatch: pytest.MonkeyPatch) -> None:
    from vllm.ray.ray_env import get_env_vars_to_copy

    monkeypatch.setenv("SPARK_PROF", "{}")
    monkeypatch.delenv(LISTED, raising=False)
    assert "SPARK_PROF" not in get_env_vars_to_copy()
    monkeypatch.setenv(LISTED, with_ray_copies({}, "SPARK_PROF")[LISTED])
    assert "SPARK_PROF" in get_env_vars_to_copy()


class Executor:
    """Takes down what it is asked, and runs it as its only worker would."""

    def __init__(self, uses_ray: bool, said: list[str], broken: bool = False) -> None:
        self.uses_ray, self._said, self._broken = uses_ray, said, broken

    def collective_rpc(self, method: Any, timeout: float) -> None:
        assert timeout > 0
        if self._broken:
            raise RuntimeError("Executor failed.")
        method("worker")
        self._said.append("asked")


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What happened in which order; a recording is under way, and an engine core is there."""
    found: list[str] = []

    class EngineCore:
        def __init__(self, executor: Any) -> None:
            self.model_executor = executor

        def shutdown(self) -> str:
            found.append("shut down")
            return "done"

    module = ModuleType(ENGINE_CORE[0])
    setattr(module, ENGINE_CORE[1], EngineCore)
    monkeypatch.setitem(sys.modules, ENGINE_CORE[0], module)
    recording = SimpleNamespace(finish=lambda: found.append("finished"))
    monkeypatch.setattr(ray, "CONTROLS", [SimpleNamespace(recordings=[recording], engines=[1])])
    flush_before_shutdown()
    flush_before_shutdown()
    return found


def core(executor: Any) -> Any:
    return getattr(sys.modules[ENGINE_CORE[0]], ENGINE_CORE[1])(executor)


def test_workers_of_ray_flush_before_they_are_killed(said: list[str]) -> None:
    assert core(Executor(True, said)).shutdown() == "done"
    assert said == ["finished", "asked", "shut down"]


def test_nobody_else_is_asked(said: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Other workers, those of a broken executor, and those that nobody records."""
    for executor in (None, Executor(False, said), Executor(True, said, broken=True)):
        assert core(executor).shutdown() == "done"
    monkeypatch.setattr(ray, "CONTROLS", [SimpleNamespace(recordings=[], engines=[])])
    core(Executor(True, said)).shutdown()
    assert said == ["shut down"] * 4


def test_a_process_without_an_engine_core(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray, "CONTROLS", [])  # other tests leave theirs
    monkeypatch.delitem(sys.modules, ENGINE_CORE[0], raising=False)
    flush_before_shutdown()
    finish_recordings("worker")
    assert ENGINE_CORE[0] not in sys.modules


@pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed here")
def test_vllm_has_what_is_asked() -> None:
    spec = importlib.util.find_spec("vllm")
    assert spec is not None
    source = Path(str(spec.origin)).with_name("v1") / "executor" / "abstract.py"
    text = source.read_text(encoding="utf-8")
    assert "    uses_ray: bool = False" in text
    assert "    def collective_rpc(" in text

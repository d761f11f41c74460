"""Profiling never harms serving: each hook fails in turn in a live engine."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.engine.conftest import ROOT

HOOKS = (
    "begin_step", "between", "begin_sample", "end_step", "targets", "introspect", "facts",
    "tensors", "mark", "ranges", "backend", "start", "stop", "discard", "flush", "remove",
    "progress", "schedule", "update", "sync", "counts", "requests", "memory",
)  # fmt: skip


def test_every_hook_in_the_sources_is_made_to_fail() -> None:
    """Nobody adds a hook without adding it here."""
    sources = (ROOT / "spark_prof" / "profiler").glob("*.py")
    # Those of the counters end with the name of their backend: f"start{name}".
    calls = re.compile(r"fence\.call\(\s*f?\"(\w+)(?:\{name\})?\"")
    found = {name for path in sources for name in calls.findall(path.read_text())}
    # Of Control and not of one recording, or called while the engine starts.
    process_wide = {"registry", "request", "signal", "tend", "ready"}
    # Called while CUDA graphs are captured, which a CPU engine does not do; tests/profiler/
    # test_graphs.py and test_capture_log.py make each of them fail.
    process_wide |= {"watch_graphs", "watch_capture", "end_capture", "see_batch", "begin_capture",
                     "read_arguments", "close_capture", "take_arguments", "graphs", "breaks",
                     "watch_memory", "see_break"}  # fmt: skip
    # Counters, clocks, launches and turns are a GPU's; tests/profiler/test_worker.py makes these
    # fail. So is what is waited for and left to other profilers.
    process_wide |= {"read_launches", "counters", "device", "pause", "resume", "wait", "release"}
    # This engine drafts nothing; tests/profiler/test_drafts.py makes it fail.
    process_wide |= {"drafts"}
    assert found - process_wide == set(HOOKS) - {"ranges"}


@pytest.fixture(scope="session")
def fenced(
    models: dict[str, Path], environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("fenced")
    command = [sys.executable, "-m", "tests.engine.fenced_engine", str(models["tiny-moe"])]
    done = subprocess.run(
        [*command, str(folder), *HOOKS],
        env=environment, capture_output=True, text=True, cwd=ROOT,
    )  # fmt: skip
    lines = [line for line in done.stdout.splitlines() if line.startswith("FENCED ")]
    assert lines, done.stdout[-3000:] + done.stderr[-30000:]
    found: dict[str, Any] = json.loads(lines[0].removeprefix("FENCED "))
    return found


def test_recording_changes_no_answer(fenced: dict[str, Any]) -> None:
    quiet = fenced["hooks"]["none"]
    assert quiet["answers"] == [fenced["unrecorded"]] * 2
    assert quiet["log"] == []
    assert quiet["steps"] > 0


@pytest.mark.parametrize("hook", HOOKS)
def test_a_failing_hook_changes_no_answer(fenced: dict[str, Any], hook: str) -> None:
    assert fenced["hooks"][hook]["answers"] == [fenced["unrecorded"]] * 2


@pytest.mark.parametrize("hook", HOOKS)
def test_a_failing_hook_is_logged_once_in_each_process(fenced: dict[str, Any], hook: str) -> None:
    log = fenced["hooks"][hook]["log"]
    assert log
    assert all(line.startswith(f"hook {hook} failed and is off") for line in log)
    assert len(log) <= 2  # the worker's and the scheduler's, where both have the hook


def test_the_engine_answers_the_same_afterwards(fenced: dict[str, Any]) -> None:
    assert fenced["afterwards"] == fenced["unrecorded"]

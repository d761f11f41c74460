"""Fixtures for tests that start a real vLLM engine on the CPU, with a model made on the spot."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from demo.models import write_model
from spark_prof import load
from spark_prof.analyzers.attribution.placement import place_kernels

ROOT = Path(__file__).resolve().parents[2]
SPARK_PROF = [sys.executable, "-m", "spark_prof.cli.main"]
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_DO_NOT_TRACK": "1",
    "VLLM_USE_FLASHINFER_SAMPLER": "0",
}

ONE_PROCESS = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "OMP_NUM_THREADS": "1"}
"""An engine without processes of its own starts sooner: for what is not about its processes.

It has one thread, as an engine with processes has on two cores: two wait for each other whenever
another test has the second core.
"""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    reason = "vLLM is not installed here; make test installs it"
    missing = importlib.util.find_spec("vllm") is None
    for item in items:
        if "tests/engine/" in item.path.as_posix():
            item.add_marker(pytest.mark.engine)
            if missing:
                item.add_marker(pytest.mark.skip(reason=reason))


NOTHING_COMPUTED = {
    "## Call CompiledFxGraph None ##",
    "aten::as_strided",
    "aten::detach_",
    "aten::empty",
    "aten::lift_fresh",
    "aten::new_empty",
    "aten::slice",
    "aten::to",
    "detach_",
}


@dataclass(frozen=True)
class Run:
    """One recorded command: its bundle, its report as JSON, and what the workload printed."""

    bundle: Path
    report: dict[str, Any]
    workload: dict[str, Any]
    errors: str


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("models")
    return {name: write_model(name, folder / name) for name in ("tiny-moe", "tiny-dense")}


@pytest.fixture(scope="session")
def environment() -> dict[str, str]:
    return dict(os.environ) | ENVIRONMENT | {"PYTHONPATH": str(ROOT)}


class Recorder:
    """Runs `spark-prof record` around a command and reads what came of it."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self._folder = folder
        self._environment = environment

    def __call__(self, name: str, command: Sequence[str], *options: str, **variables: str) -> Run:
        bundle = self._folder / name
        argv = [*SPARK_PROF, "record", "-o", str(bundle), *options, "--", *command]
        done = subprocess.run(
            argv, env=self._environment | variables, capture_output=True, text=True, cwd=ROOT
        )
        assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-8000:]
        return Run(bundle, report_of(bundle), workload_of(done.stdout), done.stderr)


def workload_of(text: str) -> dict[str, Any]:
    """What demo.workload printed, empty if it did not run."""
    lines = [line for line in text.splitlines() if line.startswith("WORKLOAD ")]
    found: dict[str, Any] = json.loads(lines[-1].removeprefix("WORKLOAD ")) if lines else {}
    return found


def report_of(bundle: Path, *options: str) -> dict[str, Any]:
    """`spark-prof report --format json` of a bundle."""
    argv = [*SPARK_PROF, "report", str(bundle), "--format", "json", *options]
    found: dict[str, Any] = json.loads(subprocess.check_output(argv, text=True))
    return found


def computing_without_component(bundle: Path, rank: int = 0) -> set[str]:
    """Operators without a component, but for views, empty memory and torch.compile's own call.

    By name, not by share of time: on a busy machine any call may wait for a core.
    """
    rows = place_kernels(load(bundle), rank)
    without = ~rows["placed"] | (rows["component"] == "other")
    return set(rows.loc[without, "name"].astype(str)) - NOTHING_COMPUTED


@pytest.fixture(scope="session")
def record(tmp_path_factory: pytest.TempPathFactory, environment: dict[str, str]) -> Recorder:
    return Recorder(tmp_path_factory.mktemp("bundles"), environment)

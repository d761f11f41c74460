"""Traces of other accelerators, and of no device at all."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from spark_prof.cli import main as cli
from spark_prof.errors import CommandError
from spark_prof.importers.sources import import_files
from spark_prof.traces.readers.kineto_facts import ACCELERATORS
from tests.rows import each_row

OPERATOR = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 5, "dur": 9}
LAUNCH = {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1, "tid": 1,
          "ts": 6, "dur": 1, "args": {"correlation": 3}}  # fmt: skip
KERNEL = {"ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 0, "ts": 9, "dur": 4,
          "args": {"correlation": 3}}  # fmt: skip


def trace(folder: Path, *events: dict[str, Any], name: str = "t.json") -> Path:
    path = folder / name
    path.write_text(json.dumps({"traceEvents": [OPERATOR, *events]}))
    return path


Report = Callable[[Path], tuple[int, str, str]]


@pytest.fixture
def report(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Report:
    def run(path: Path) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["spark-prof", "report", str(path)])
        return cli.main(), *capsys.readouterr()

    return run


@each_row("category", [example for _, example, _ in ACCELERATORS])
def test_a_trace_of_another_accelerator_is_refused_by_its_name(
    category: str, tmp_path: Path
) -> None:
    name = next(name for key, _, name in ACCELERATORS if category.startswith(key))
    path = trace(tmp_path, OPERATOR | {"cat": category, "name": "gemm"})
    with pytest.raises(CommandError) as refused:
        import_files([path], tmp_path / "bundle")
    assert str(refused.value).startswith(f"t.json is of {name}; only")
    assert "\n" not in str(refused.value)


def test_the_command_ends_with_two_and_one_line(tmp_path: Path, report: Report) -> None:
    path = trace(tmp_path, OPERATOR | {"cat": "mtia_ccp_events", "name": "gemm"})
    code, out, error = report(path)
    assert (code, out) == (2, "")
    assert len(error.strip().splitlines()) == 1
    assert "an MTIA" in error


def test_launches_without_any_device_activity_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match="has no device activity, though it launched kernels"):
        import_files([trace(tmp_path, LAUNCH)], tmp_path / "bundle")


def test_a_trace_of_operators_alone_is_no_engine_on_a_cpu(tmp_path: Path, report: Report) -> None:
    code, out, _ = report(trace(tmp_path))
    assert code == 0
    assert "The trace has no device activity" in " ".join(out.split())
    assert "ran on a CPU" not in " ".join(out.split())


def test_kernels_of_another_accelerator_are_told_as_such(tmp_path: Path) -> None:
    path = trace(tmp_path, KERNEL, LAUNCH, LAUNCH | {"cat": "xpu_runtime", "name": "urEnqueue"})
    bundle = import_files([path], tmp_path / "bundle")
    assert any("recorded on an XPU (Intel GPU)" in line for line in bundle.meta.lost)


def test_beside_a_trace_of_a_gpu_the_other_is_left_out_and_told(tmp_path: Path) -> None:
    paths = [trace(tmp_path, KERNEL, LAUNCH),
             trace(tmp_path, OPERATOR | {"cat": "hpu_op"}, name="rank1.json")]  # fmt: skip
    bundle = import_files(paths, tmp_path / "bundle")
    assert bundle.ranks == (0,)
    assert any("not imported: rank1.json is of an HPU" in line for line in bundle.meta.lost)

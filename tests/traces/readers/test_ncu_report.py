"""Reports of Nsight Compute, read by a stand-in for NVIDIA's package with the same functions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from spark_prof.errors import CommandError
from spark_prof.importers.sources import import_files
from spark_prof.traces.formats import format_of
from spark_prof.traces.readers.ncu_csv import ncu_csv
from spark_prof.traces.readers.ncu_report import REPORT_MAGIC, ncu_report

PACKAGE = """
import json
class Metric:
    def __init__(self, value, unit): self._value, self._unit = value, unit
    def value(self): return self._value
    def unit(self): return self._unit
    def has_value(self): return self._value is not None
class Action:
    WorkloadType_KERNEL, NameBase_DEMANGLED = 0, 1
    def __init__(self, told): self._told = told
    def workload_type(self): return self._told.get("kind", 0)
    def name(self, base): return self._told["name"] if base == 1 else "short"
    def metric_names(self): return tuple(self._told["metrics"])
    def metric_by_name(self, name): return Metric(*self._told["metrics"][name])
class Range:
    def __init__(self, told): self._told = told
    def num_actions(self): return len(self._told)
    def action_by_idx(self, place): return Action(self._told[place])
class Context:
    def __init__(self, told): self._told = told
    def num_ranges(self): return len(self._told)
    def range_by_idx(self, place): return Range(self._told[place])
def load_report(path):
    return Context(json.loads(open(path, "rb").read()[4:]))
"""

NAME = "void gemm<__nv_bfloat16, 128>(int)"
METRICS: dict[str, Any] = {
    "gpu__time_duration.sum": (1234.0, "ns"),
    "sm__inst_executed_pipe_tensor.sum": (5, "inst"),
    "device__attribute_display_name": ("NVIDIA GB10", ""),
    "device__attribute_compute_capability_major": (12, ""),
    "device__attribute_compute_capability_minor": (1, ""),
    "launch__grid_dim_x": (48, ""), "launch__grid_dim_y": (2, ""), "launch__grid_dim_z": (1, ""),
    "launch__block_dim_x": (128, ""), "launch__block_dim_y": (1, ""),
    "launch__block_dim_z": (1, ""),
    "nothing.sum": (None, ""),
}  # fmt: skip


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in which reports are written; the stand-in can be imported."""
    (tmp_path / "python").mkdir()
    (tmp_path / "python" / "ncu_report.py").write_text(PACKAGE)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "python"))
    return tmp_path


def report(folder: Path, content: bytes) -> Path:
    path = folder / "run.ncu-rep"
    path.write_bytes(REPORT_MAGIC + content)
    return path


def test_a_report_reads_as_what_ncu_prints_of_it(package: Path) -> None:
    other = {"name": "a graph", "kind": 3, "metrics": {}}
    kernel = {"name": NAME, "metrics": METRICS}
    path = report(package, json.dumps([[kernel, other], [kernel]]).encode())
    assert format_of(path) == "ncu-rep"
    found = ncu_report(path)
    printed = package / "run.csv"
    head = ["ID", "Kernel Name", "Device", "CC", "Block Size", "Grid Size",
            "gpu__time_duration.sum", "sm__inst_executed_pipe_tensor.sum"]  # fmt: skip
    units = ["", "", "", "", "", "", "ns", "inst"]
    row = ["0", NAME, "0", "12.1", "(128, 1, 1)", "(48, 2, 1)", "1234", "5"]
    lines = [head, units, row, ["1", *row[1:]]]
    printed.write_text("".join(",".join(f'"{c}"' for c in line) + "\n" for line in lines))
    expected = ncu_csv(printed)
    assert found.processes[0].facts["gpu"] == {
        "vendor": "NVIDIA", "name": "NVIDIA GB10", "compute_capability": "12.1",
    }  # fmt: skip
    assert "1 measured ranges or graphs are no single kernels, and left out" in found.lost
    for mine, theirs in zip(found.windows, expected.windows, strict=True):
        assert mine.trace.gpu.equals(theirs.trace.gpu)
    wanted = ["gpu__time_duration.sum", "sm__inst_executed_pipe_tensor.sum"]
    metrics = [t.processes[0].metrics.astype({"metric": str}) for t in (found, expected)]
    mine, theirs = (m[m["metric"].isin(wanted)].reset_index(drop=True) for m in metrics)
    assert mine[["launch", "metric", "value"]].equals(theirs[["launch", "metric", "value"]])


def test_beside_a_trace_it_gives_counters(package: Path) -> None:
    from tests.importers.test_impossible_times import queue, trace

    path = report(package, json.dumps([[{"name": NAME, "metrics": METRICS}]]).encode())
    (package / "trace.json").write_text(trace(queue(name=NAME)))
    bundle = import_files([package / "trace.json", path], package / "bundle")
    assert len(bundle.frame("kernels", 0)) == 50
    assert set(bundle.frame("metrics", 0)["name"].astype(str)) == {NAME}


def test_a_damaged_report_is_one_line(package: Path) -> None:
    with pytest.raises(CommandError, match="is not a report that ncu-report can read"):
        ncu_report(report(package, b"\0\xff"))
    with pytest.raises(CommandError, match="lists no kernel"):
        ncu_report(report(package, b"[]"))


def test_without_the_package_the_ways_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ncu_report.py").write_text("raise ImportError")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(CommandError, match=r"pip install 'ncu-report>=2026.3'.*--csv --page raw"):
        ncu_report(report(tmp_path, b"[]"))

"""Graph nodes in both dialects, and what is said about a report that lacks something."""

from __future__ import annotations

from pathlib import Path

from spark_prof.traces.readers.nsys_facts import nsys_lacks
from tests.nsys_files import BEGUN, KERNEL, PID, Export, global_pid
from tests.rows import each_row

MARK = f"spark_prof clock {BEGUN + 1}"


def written(export: Export, tmp_path: Path) -> Path:
    return export.write(tmp_path / "export.sqlite")


def test_a_report_that_lacks_nothing(tmp_path: Path) -> None:
    export = Export().mark(1, MARK).launch(1, 1).node(1, 7).kernel("gemm", 2, 3, 1, node=7)
    assert nsys_lacks(written(export, tmp_path), PID) == ()


@each_row(
    ("without", "says"),
    [
        (KERNEL, "has no GPU kernels of this process"),
        ("CUPTI_ACTIVITY_KIND_RUNTIME", "no CUDA API calls"),
        ("CUDA_GRAPH_NODE_EVENTS", "does not show how the CUDA graphs were captured"),
        ("NVTX_EVENTS", "no clock marks"),
    ],
)
def test_what_a_report_lacks(tmp_path: Path, without: str, says: str) -> None:
    export = Export().mark(1, MARK).launch(1, 1).node(1, 7).kernel("gemm", 2, 3, 1, node=7)
    del export.rows[without]
    (line,) = nsys_lacks(written(export, tmp_path), PID)
    assert says in line


def test_nsys_own_warnings(tmp_path: Path) -> None:
    export = Export().mark(1, MARK).launch(1, 1).kernel("gemm", 2, 3, 1)
    for severity, text, pid in (
        (1, "all is well", PID),
        (2, "Not all CUDA events\nmight have been collected.", PID),
        (3, "others only", PID + 1),
        (3, "x" * 5000, None),
    ):
        owner = None if pid is None else global_pid(pid)
        export.add("DIAGNOSTIC_EVENT", severity=severity, text=text, globalPid=owner)
    lines = nsys_lacks(written(export, tmp_path), PID)
    assert lines[0] == "nsys: Not all CUDA events might have been collected."
    assert lines[1] == f"nsys: {'x' * 200}"
    assert len(lines) == 2

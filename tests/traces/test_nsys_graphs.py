"""Graph nodes in both dialects, and what is said about a report that lacks something."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_prof.traces.pieces import NODE_DTYPE
from spark_prof.traces.readers.nsys_facts import nsys_lacks, nsys_nodes, nsys_processes
from tests.nsys_files import BEGUN, KERNEL, PID, TABLES, THREAD, Export, global_pid
from tests.rows import each_row

OLD = {"CUDA_GRAPH_EVENTS": TABLES["CUDA_GRAPH_NODE_EVENTS"]}
MARK = f"spark_prof clock {BEGUN + 1}"


def written(export: Export, tmp_path: Path) -> Path:
    return export.write(tmp_path / "export.sqlite")


@pytest.mark.parametrize("table", ["CUDA_GRAPH_NODE_EVENTS", "CUDA_GRAPH_EVENTS"])
def test_nodes_and_clones(tmp_path: Path, table: str) -> None:
    export = Export(columns=TABLES | (OLD if table == "CUDA_GRAPH_EVENTS" else {}))
    export.node(100, 7, table=table).node(200, 8, 7, table=table).node(300, 9, 9, table=table)
    export.node(400, 7, table=table, pid=PID + 1)
    nodes = nsys_nodes(written(export, tmp_path), PID)
    assert nodes.dtype == NODE_DTYPE
    assert nodes.tolist() == [
        (BEGUN + 100, 7, 0, 0, THREAD),
        (BEGUN + 200, 8, 7, 0, THREAD),
        (BEGUN + 300, 9, 0, 0, THREAD),
    ]


def test_the_newer_table_of_that_name_is_about_graphs(tmp_path: Path) -> None:
    export = Export().add("CUDA_GRAPH_EVENTS", start=5, globalTid=global_pid(PID), graphId=3)
    assert len(nsys_nodes(written(export, tmp_path), PID)) == 0


def test_processes_with_work(tmp_path: Path) -> None:
    export = Export().launch(1, 1).kernel("gemm", 2, 3, 1).launch(1, 1, pid=PID + 1)
    assert nsys_processes(written(export, tmp_path)) == {PID: 2, PID + 1: 1}


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

"""Every small format as a report, and Nsight Compute's counters beside a trace."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from spark_prof.analyzers.summary import summarize
from spark_prof.importers.sources import import_files

DATA = Path(__file__).parents[1] / "data"
TRACE = DATA / "proton" / "trace.chrome_trace"
GEMM = "nvjet_sm90_tst_64x48_64x15_2x4_h_bz_NNT"
HEAD = '"ID","Process ID","Kernel Name","Block Size","Grid Size","Device","CC","Metric Name",'
HEAD += '"Metric Unit","Metric Value"\n'


def counters(path: Path, *rows: tuple[str, str, str]) -> Path:
    lines = (
        f'"{number}","5","{name}","(1, 1, 1)","(1, 1, 1)","0","9.0","{metric}","","{value}"\n'
        for number, (name, metric, value) in enumerate(rows)
    )
    path.write_text(HEAD + "".join(lines))
    return path


@pytest.mark.slow
@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_counters_beside_a_trace_label_its_kernels(tmp_path: Path, order: tuple[int, ...]) -> None:
    files = [
        TRACE,
        counters(tmp_path / "a.csv", (GEMM, "sm__ops_path_tensor_src_bf16_dst_fp32.sum", "64")),
        counters(tmp_path / "b.csv", ("add", "sm__inst_executed_pipe_tensor_op_gmma.sum", "7"),
                 (GEMM, "gpu__time_duration.sum", "1,000")),
    ]  # fmt: skip
    bundle = import_files([files[i] for i in order], tmp_path / "bundle")
    assert bundle.ranks == (0,)
    assert sorted(bundle.frame("metrics", 0)["launch"]) == [0, 1, 2]
    report = summarize(bundle)
    assert report.wall_us is not None
    labels = {row.name: (row.engine, row.precision, row.evidence) for row in report.kernels}
    assert labels[GEMM] == ("tensor-core", "bf16", "counter")
    assert labels["add"] == ("tensor-core", None, "counter")
    assert sum(row.calls for row in report.kernels) == 22


def test_a_name_that_counters_contradict_is_noted(tmp_path: Path) -> None:
    file = counters(tmp_path / "a.csv", (GEMM, "sm__pipe_tensor_cycles_active.sum", "0"))
    report = summarize(import_files([file], tmp_path / "bundle"))
    assert report.kernels[0].engine == "cuda-core"
    (conflict,) = report.conflicts
    assert (conflict.name, conflict.found, conflict.evidence) == (GEMM, "cuda-core", "counter")

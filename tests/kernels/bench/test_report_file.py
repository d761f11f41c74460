"""The file of a run's results: written whole, read as it was, refused if it is none."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from benchmarks.kernel_targets import read_report, write_report
from spark_prof.kernels.bench.results import LeftOut, Report, keep, machine_of, run_of
from spark_prof.kernels.kernel_error import KernelError
from spark_prof.kernels.tuning import read
from tests.rows import each_row

from .made import CEILINGS, MARLIN, cell, ours


@pytest.fixture
def report() -> Report:
    found = Report(machine_of(torch.device("cpu")), CEILINGS)
    found.add(cell(ours(12.0, marlin=20.0, cublas=15.0)))
    found.add(cell({"spark-prof": None, MARLIN: 20.0}, tokens=2))
    found.add(LeftOut("dense nvfp4 1 x 2", "no time"))
    return found


def test_it_is_read_as_it_was_written(report: Report, tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    write_report(report, path)
    assert read_report(path) == report
    report.add(cell(ours(1.0)))
    write_report(report, path)
    assert read_report(path) == report
    assert list(tmp_path.iterdir()) == [path]


@each_row(
    "text",
    [b"", b"{", b"[]", b"\xff\xfe", b'{"schema":1}', b"[" * 100_000, b'{"machine":{"name":3}}'],
)
def test_what_is_no_such_file_is_refused(text: bytes, tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    path.write_bytes(text)
    with pytest.raises(KernelError, match=r"result\.json is no result"):
        read_report(path)


def test_the_dispatcher_gets_what_was_timed(report: Report, tmp_path: Path) -> None:
    (row,) = run_of(report).rows
    assert (row.us, row.fallback, row.fallback_us) == (12.0, "cuBLAS BF16", 15.0)
    assert row.config == {"warps": 8}
    (run,) = read(keep(report, tmp_path / "tuned.json"))
    assert run.rows == (row,)

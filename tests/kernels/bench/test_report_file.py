"""The file of a run's results: read as it was written, refused if it is none."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from benchmarks.kernel_targets import read_report, write_report
from spark_prof.kernels.bench.results import (
    OURS,
    BenchCell,
    BenchReport,
    ImplementationResult,
    MachineCeilings,
    TimeSpread,
    UnmeasuredShape,
    keep,
    machine_of,
    run_of,
)
from spark_prof.kernels.kernel_error import KernelError
from spark_prof.kernels.tuning import TunedShape, read
from tests.rows import each_row

MARLIN, CUBLAS = "vLLM Marlin", "cuBLAS BF16"


def cell(tokens: int, **times: float | None) -> BenchCell:
    """A piece of work and what everybody took for it in microseconds, None for who failed."""
    names = {"ours": OURS, "marlin": MARLIN, "cublas": CUBLAS}
    results = [
        ImplementationResult(
            names[name], us and TimeSpread(us, 0.9 * us, 1.1 * us, 20), 0.5, "" if us else "wrong"
        )
        for name, us in times.items()
    ]
    work = TunedShape("dense", "nvfp4", 4096, 13020, tokens)
    return BenchCell("dense", work, "a layer", 30, 30, False, tuple(results), {"warps": 8})


@pytest.fixture
def report() -> BenchReport:
    read, copy, launch = (
        TimeSpread(each, 0.9 * each, 1.1 * each, 20) for each in (3e12, 2e12, 1.0)
    )
    ceilings = MachineCeilings(read, copy, launch, "torch.sum", "Tensor.copy_", "empty kernels")
    found = BenchReport(machine_of(torch.device("cpu")), ceilings)
    found.add(cell(1, ours=12.0, marlin=20.0, cublas=15.0))
    found.add(cell(2, ours=None, marlin=20.0))
    found.add(UnmeasuredShape("dense nvfp4 1 x 2", "no time"))
    return found


def test_it_is_read_as_it_was_written(report: BenchReport, tmp_path: Path) -> None:
    path = tmp_path / "result.json"
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


def test_the_dispatcher_gets_what_was_timed(report: BenchReport, tmp_path: Path) -> None:
    (row,) = run_of(report).rows
    assert (row.us, row.fallback, row.fallback_us) == (12.0, CUBLAS, 15.0)
    assert row.config == {"warps": 8}
    (run,) = read(keep(report, tmp_path / "tuned.json"))
    assert run.rows == (row,)

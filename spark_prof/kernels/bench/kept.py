"""Keeps a run of the benchmark where the dispatcher looks."""

from __future__ import annotations

from pathlib import Path

from spark_prof.kernels.bench.report_file import Report
from spark_prof.kernels.errors import KernelError
from spark_prof.kernels.tuning import Run, Tuned, save


def keep(report: Report, path: Path | None = None) -> Path:
    """Adds a run to the file of measurements, by default the user's own; returns its path.

    Raises:
        KernelError: nothing was timed, or the file cannot be written.
    """
    run = run_of(report)
    if not run.rows:
        raise KernelError("nothing was timed, so there is nothing to keep")
    return save(run, path)


def run_of(report: Report) -> Run:
    """What the dispatcher needs of a run: our kernels' times and those of the fastest others."""
    rows = []
    for cell in report.cells:
        if cell.ours is not None and cell.kind != "fused":
            other, us = cell.best_peer() or ("", None)
            rows.append(Tuned(cell.work, cell.config, cell.ours, other, us))
    machine = report.machine
    return Run(
        machine.architecture, machine.name, machine.date, machine.driver, machine.versions,
        tuple(rows),
    )  # fmt: skip

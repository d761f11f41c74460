"""Runs the benchmark of `spark-prof kernels bench`, and tells on stderr how far it is."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import get_args

import torch

from spark_prof.errors import CommandError
from spark_prof.kernels.bench.ceilings import measure_ceilings
from spark_prof.kernels.bench.machine import machine_of
from spark_prof.kernels.bench.report_file import Report
from spark_prof.kernels.bench.results import OURS, Cell
from spark_prof.kernels.bench.run import KINDS, Request, run
from spark_prof.kernels.bench.shapes import TOKENS, WeightFormat
from spark_prof.kernels.bench.text import cell_line
from spark_prof.kernels.entry import ReplacementKernel

__all__ = ["measured"]


def measured(
    kernels: Sequence[ReplacementKernel],
    models: Sequence[str],
    tokens: Sequence[int],
    seconds: float,
    tune: bool,
) -> tuple[Report, bool]:
    """Times kernels beside others.

    Args:
        kernels: which; those that there is nothing to compare with are left out.
        models: parts of the names of the models whose layers are timed, all if empty.
        tokens: rows of the activations, the usual ones if empty.
        seconds: after which no further shape is begun.
        tune: search the best configuration of each kernel first.

    Returns:
        What was measured, and whether none of this project's kernels failed.

    Raises:
        CommandError: there is nothing to time.
    """
    kinds = [kind for kind in KINDS if any(kernel.bench == kind for kernel in kernels)]
    if not kinds:
        raise CommandError(f"{kernels[0].name} has nothing to be timed beside; check can test it")
    device = torch.device("cuda", torch.cuda.current_device())
    named = {kind for kernel in kernels if kernel.bench == "dense" for kind in kernel.formats}
    formats = [kind for kind in get_args(WeightFormat) if kind in named]
    request = Request(kinds, models, tokens or TOKENS, formats, seconds=seconds, tune=tune)
    report = Report(machine_of(device), measure_ceilings(device))
    for found in run(request, device):
        report.add(found)
        line = cell_line(found, report.ceilings) if isinstance(found, Cell) else found.what
        print(f"spark-prof: {line}", file=sys.stderr)
    if not report.cells and not report.left_out:
        raise CommandError(f"no layer is of a model named like {' or '.join(models)}")
    failed = any(
        result.contestant == OURS and result.failed
        for cell in report.cells
        for result in cell.results
    )
    return report, not failed

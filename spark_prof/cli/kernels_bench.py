"""Runs the benchmark of `spark-prof kernels bench`, and tells on stderr how far it is."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import get_args

import torch

from spark_prof.errors import CommandError
from spark_prof.kernels.bench.ceilings import measure_ceilings
from spark_prof.kernels.bench.machine import machine_of
from spark_prof.kernels.bench.report_file import Report
from spark_prof.kernels.bench.results import Cell, Result
from spark_prof.kernels.bench.run import KINDS, LeftOut, Request, run
from spark_prof.kernels.bench.shapes import TOKENS, WeightFormat
from spark_prof.kernels.bench.text import cell_line
from spark_prof.kernels.registry import ReplacementKernel


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
    report = _reported(run(request, device), device, models)
    return report, not any(result.failed for result in _of_subject(report))


def measured_own(
    kernel: str, slot: str, models: Sequence[str], tokens: Sequence[int], seconds: float
) -> tuple[Report, bool]:
    """Times somebody's own kernel beside others.

    Args:
        kernel: as in a swap: `FILE.py:FUNCTION`, or a name.
        slot: for which.
        models: as in `measured`.
        tokens: as in `measured`.
        seconds: as in `measured`.

    Returns:
        What was measured, and whether the kernel never failed; it may abstain.

    Raises:
        CommandError: there is no such kernel, nothing to time, or it always abstained.
    """
    from spark_prof.swaps.bench import OwnKernel, race_all
    from spark_prof.swaps.own import load_builder

    own = OwnKernel(Path(kernel).name, slot, load_builder(kernel))
    device = torch.device("cuda", torch.cuda.current_device())
    report = _reported(race_all(own, models, tokens, seconds, device), device, models)
    results = _of_subject(report)
    failures = [result.failed for result in results if result.failed]
    if (
        results
        and all(why.startswith("Abstained") for why in failures)
        and not any(result.us for result in results)
    ):
        raise CommandError(f"{kernel} was not timed anywhere: {failures[0]}")
    return report, all(why.startswith("Abstained") for why in failures)


def _reported(
    results: Iterable[Cell | LeftOut], device: torch.device, models: Sequence[str]
) -> Report:
    report = Report(machine_of(device), measure_ceilings(device))
    for found in results:
        report.add(found)
        line = cell_line(found, report.ceilings) if isinstance(found, Cell) else found.what
        print(f"spark-prof: {line}", file=sys.stderr)
    if not report.cells and not report.left_out:
        raise CommandError(f"no layer is of a model named like {' or '.join(models)}")
    return report


def _of_subject(report: Report) -> list[Result]:
    return [
        result
        for cell in report.cells
        for result in cell.results
        if result.contestant == cell.subject
    ]

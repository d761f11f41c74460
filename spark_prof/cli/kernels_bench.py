"""Runs the benchmark of `spark-prof kernels bench`, and tells on stderr how far it is."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import get_args

import torch

from spark_prof.cli.options import say
from spark_prof.errors import CommandError
from spark_prof.kernels.bench.ceilings import measure_ceilings
from spark_prof.kernels.bench.results import Cell, Report, cell_line, machine_of
from spark_prof.kernels.bench.run import KINDS, Request, run
from spark_prof.kernels.bench.shapes import TOKENS, WeightFormat
from spark_prof.kernels.candidate import Candidate
from spark_prof.kernels.registry import ReplacementKernel


def measured(
    timed: Sequence[ReplacementKernel] | Candidate,
    models: Sequence[str],
    tokens: Sequence[int],
    seconds: float,
    tune: bool,
) -> tuple[Report, bool]:
    """Times kernels beside others.

    Args:
        timed: kernels of the list, of which those that there is nothing to compare with are left
            out, or somebody's own.
        models: parts of the names of the models whose layers are timed, all if empty.
        tokens: rows of the activations, the usual ones if empty.
        seconds: after which no further shape is begun.
        tune: search the best configuration of each kernel first.

    Returns:
        What was measured, and whether none of the kernels failed; somebody's own may abstain.

    Raises:
        CommandError: there is nothing to time, or somebody's own kernel always abstained.
    """
    counts = tokens or TOKENS
    if isinstance(timed, Candidate):
        request = Request(models=models, tokens=counts, seconds=seconds, own=timed)
    else:
        raced = [kernel for kernel in timed if kernel.bench]
        if not raced:
            raise CommandError(f"{timed[0].name} has nothing to be timed beside; check can test it")
        kinds = [kind for kind in KINDS if any(kernel.race == kind for kernel in raced)]
        named = {kind for kernel in raced if kernel.race == "dense" for kind in kernel.formats}
        formats = [kind for kind in get_args(WeightFormat) if kind in named]
        names = [kernel.check for kernel in raced]
        request = Request(kinds, models, counts, formats, seconds=seconds, tune=tune, kernels=names)
    device = torch.device("cuda", torch.cuda.current_device())
    report = Report(machine_of(device), measure_ceilings(device))
    for found in run(request, device):
        report.add(found)
        line = cell_line(found, report.ceilings) if isinstance(found, Cell) else found.what
        say(line)
    if not report.cells and not report.left_out:
        raise CommandError(f"no layer is of a model named like {' or '.join(models)}")
    results = [
        result
        for cell in report.cells
        for result in cell.results
        if result.contestant == cell.subject
    ]
    failures = [result.failed for result in results if result.failed]
    if isinstance(timed, Candidate):
        if results and not any(result.us for result in results) and _abstained(failures):
            raise CommandError(f"{timed.name} was not timed anywhere: {failures[0]}")
        return report, _abstained(failures)
    return report, not failures


def _abstained(failures: Sequence[str]) -> bool:
    return all(why.startswith("Abstained") for why in failures)


def own_candidate(kernel: str, slot: str) -> Candidate:
    """Somebody's own kernel as a candidate.

    Args:
        kernel: as in a swap: `FILE.py:FUNCTION`, or a name.

    Raises:
        CommandError: there is no such kernel.
    """
    from spark_prof.swaps.own import load_builder

    return Candidate(Path(kernel).name, slot, load_builder(kernel))

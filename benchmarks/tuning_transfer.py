"""What it costs to run with the measurements of another GPU, such as an H100's on an H200.

For each piece of work, in one race: the time of what the dispatcher chooses by those measurements,
be it a configuration of the kernel or its fallback, and that of the best that a search finds here.

usage: python benchmarks/tuning_transfer.py RESULT.json [--tuned TUNED.json] [--models PART...]
           [--tokens N...] [--formats nvfp4 mxfp4 bf16] [--seconds S] [--most PERCENT]
       python benchmarks/tuning_transfer.py RESULT.json --show
exit code: 1 if the geometric mean of the loss is above --most, 2 without a GPU
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import geometric_mean
from typing import get_args

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch

from benchmarks.kernel_targets import machine_lines, read_report, write_report
from spark_prof.kernels.bench.machine_ceilings import measure_ceilings
from spark_prof.kernels.bench.request import BenchRequest
from spark_prof.kernels.bench.results import BenchCell, BenchReport, machine_of, work_text
from spark_prof.kernels.bench.run import run
from spark_prof.kernels.bench.shapes import WeightFormat
from spark_prof.kernels.dispatch import choose
from spark_prof.kernels.tuning import SHIPPED, TuningRun, read


@dataclass(frozen=True)
class Transfer:
    """One piece of work."""

    cell: BenchCell
    chosen: str  # the kernel's name, or the fallback's
    us: float  # of that
    best: str
    best_us: float  # the best that was found on this GPU

    @property
    def loss(self) -> float:
        """How many times as long it takes as the best."""
        return self.us / self.best_us


def transfers(report: BenchReport, runs: Sequence[TuningRun]) -> Iterator[Transfer]:
    """What was searched, without that to which nothing can be compared."""
    machine = report.machine
    for cell in report.cells:
        peer, ours, before = cell.best_peer(), cell.ours, cell.before_us
        if peer is None or ours is None or before is None:
            continue
        work = cell.work
        choice = choose(
            work.kernel, work.format, work.rows, work.columns, work.tokens, machine.architecture,
            experts=work.experts, top_k=work.top_k, runs=runs, gpu=machine.name,
        )  # fmt: skip
        name, us = peer if choice.config is None else (cell.subject, before)
        best, best_us = min(peer, (cell.subject, ours), key=lambda pair: pair[1])
        yield Transfer(cell, name, us, best, best_us)


def lines(rows: Sequence[Transfer]) -> Iterator[str]:
    """Each piece of work, the largest loss first, then the mean."""
    for row in sorted(rows, key=lambda transfer: -transfer.loss):
        yield (
            f"{work_text(row.cell):52} {row.us:8.2f} us {row.chosen:14}"
            f" best {row.best_us:8.2f} us {row.best:14} {100 * (row.loss - 1):6.1f} %"
        )
    if rows:
        worst = max(row.loss for row in rows)
        yield (
            f"{len(rows)} pieces of work: {100 * (mean_of(rows) - 1):.1f} % lost on the geometric"
            f" mean, {100 * (worst - 1):.1f} % at most"
        )


def mean_of(rows: Sequence[Transfer]) -> float:
    return geometric_mean(row.loss for row in rows) if rows else math.nan


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("result", type=Path, help="file to write, anew after each piece of work")
    parser.add_argument("--tuned", type=Path, default=SHIPPED, help="default: the package's")
    parser.add_argument("--models", nargs="+", default=(), help="parts of names")
    parser.add_argument("--tokens", nargs="+", type=int, default=(1, 8))
    formats = get_args(WeightFormat)
    parser.add_argument("--formats", nargs="+", choices=formats, default=("nvfp4", "mxfp4", "bf16"))
    parser.add_argument("--seconds", type=float, default=240.0)
    parser.add_argument("--most", type=float, default=math.inf, help="percent that may be lost")
    parser.add_argument("--show", action="store_true", help="time nothing, print that result")
    options = parser.parse_args()
    runs = read(options.tuned)
    if options.show:
        report = read_report(options.result)
    elif not torch.cuda.is_available():
        print("tuning_transfer.py times kernels on a GPU, and torch finds none", file=sys.stderr)
        return 2
    else:
        device = torch.device("cuda", torch.cuda.current_device())
        report = BenchReport(machine_of(device), measure_ceilings(device))
        request = BenchRequest(
            models=options.models, tokens=options.tokens, formats=options.formats,
            seconds=options.seconds, seconds_each=0.05, tune=True, runs=runs,
        )  # fmt: skip
        for cell in run(request, device):
            report.add(cell)
            write_report(report, options.result)
    losses = list(transfers(report, runs))
    measured_on = ", ".join(dict.fromkeys(run_.machine for run_ in runs))
    print(*machine_lines(report.machine, report.ceilings), sep="\n")
    print(f"by measurements on {measured_on}")
    print(*lines(losses), sep="\n")
    return int(mean_of(losses) > 1 + options.most / 100)


if __name__ == "__main__":
    sys.exit(main())

"""How fast the kernels are beside cuBLAS, vLLM's own and the machine's bandwidth, in one run.

Every competitor runs in a CUDA graph of many calls, in turns with the others, each call on weights
and activations that no cache holds; a competitor whose output is wrong is not timed. Each line is
one piece of work: our time with its quartiles, the share of the measured read bandwidth at which it
reads its weights, its floor (all bytes at that bandwidth, and one launch), and what others take.
The last lines are the bars that the kernels have to reach on an H100. --show prints a result again,
each bar with all that it is about.

usage: python benchmarks/kernels.py RESULT.json [--only dense moe] [--models PART...]
           [--tokens N...] [--formats nvfp4 mxfp4 fp8 bf16] [--competitors PART...]
           [--seconds S] [--tune] [--save TUNED.json]
       python benchmarks/kernels.py RESULT.json --show
exit code: 1 if a bar of what was measured is not reached, 2 without a GPU or such a result
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch

from benchmarks.kernel_targets import (
    Reached,
    bar_lines,
    bar_tables,
    failure_lines,
    judge_bars,
    machine_lines,
    read_report,
    write_report,
)
from spark_prof.kernels.bench.machine_ceilings import measure_ceilings
from spark_prof.kernels.bench.request import KINDS, BenchRequest
from spark_prof.kernels.bench.results import BenchCell, BenchReport, cell_line, keep, machine_of
from spark_prof.kernels.bench.run import run
from spark_prof.kernels.bench.shapes import FP4, TOKENS, WeightFormat
from spark_prof.kernels.kernel_error import KernelError


def main() -> int:
    options = parsed()
    if options.show:
        try:
            report = read_report(options.result)
        except KernelError as error:
            print(error, file=sys.stderr)
            return 2
        reached = judge_bars(report.cells, report.ceilings)
        show(*machine_lines(report.machine, report.ceilings), *failure_lines(report.cells))
        show(*bar_tables(reached, report.ceilings))
        return ended(reached)
    if not torch.cuda.is_available():
        print("kernels.py times kernels on an NVIDIA GPU, and torch finds none", file=sys.stderr)
        return 2
    device = torch.device("cuda", torch.cuda.current_device())
    begun = time.perf_counter()
    report = BenchReport(machine_of(device), measure_ceilings(device))
    show(*machine_lines(report.machine, report.ceilings))
    request = BenchRequest(
        only=options.only,
        models=options.models,
        tokens=options.tokens,
        formats=options.formats,
        competitors=options.competitors,
        seconds=options.seconds,
        tune=options.tune,
    )
    for cell in run(request, device):
        report.add(cell)
        write_report(report, options.result)
        if isinstance(cell, BenchCell):
            show(cell_line(cell, report.ceilings))
        else:
            show(f"left out: {cell.what}: {cell.why}")
    if options.save:
        show(f"wrote {keep(report, options.save)}")
    reached = judge_bars(report.cells, report.ceilings)
    show(*failure_lines(report.cells), *bar_lines(reached))
    show(f"{len(report.cells)} pieces of work in {time.perf_counter() - begun:.0f} s")
    return ended(reached)


def ended(reached: Sequence[Reached]) -> int:
    """The exit code: bars of which nothing was measured do not count."""
    return int(any(result.value is not None and not result.passed for result in reached))


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("result", type=Path, help="file to write, anew after each piece of work")
    parser.add_argument("--only", nargs="+", choices=KINDS, default=KINDS)
    parser.add_argument("--models", nargs="+", default=(), help="parts of names")
    parser.add_argument("--tokens", nargs="+", type=int, default=TOKENS)
    formats = get_args(WeightFormat)
    parser.add_argument("--formats", nargs="+", choices=formats, default=FP4)
    parser.add_argument("--competitors", nargs="+", default=(), help="parts of names")
    parser.add_argument("--seconds", type=float, default=240.0, help="then begin no other shape")
    parser.add_argument("--tune", action="store_true", help="search each one's best configuration")
    parser.add_argument("--save", type=Path, help="add the configurations timed to this file")
    parser.add_argument("--show", action="store_true", help="time nothing, print that result")
    return parser.parse_args()


def show(*lines: str) -> None:
    print(*lines, sep="\n", flush=True)


if __name__ == "__main__":
    sys.exit(main())

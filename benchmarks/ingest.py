"""Time and memory of `spark-prof import` and `report` on large foreign traces, beside the peers.

Every line is a fresh process, on the same file and in the same run, with two cores. The last
column says how many times as long as spark-prof it took.

usage: python benchmarks/ingest.py [--kineto COPIES...] [--nsys KERNELS...] [--peers PYTHON]
                                   [--keep FOLDER]
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from itertools import pairwise
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import ingest_kineto, ingest_nsys


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kineto", type=int, nargs="*", default=[10, 20],
                        help="how often the real trace is repeated")  # fmt: skip
    parser.add_argument("--nsys", type=int, nargs="*", default=[2_200_000],
                        help="kernels of the generated nsys export")  # fmt: skip
    # PyPI's tracelens is another project than AMD's.
    parser.add_argument(
        "--peers", help="a Python with HolisticTraceAnalysis, AMD's TraceLens or nsys-ai"
    )
    parser.add_argument("--keep", type=Path, help="make the traces there and keep them")
    options = parser.parse_args()
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])
    if options.kineto and not ingest_kineto.SOURCE.exists():
        raise SystemExit(f"no {ingest_kineto.SOURCE}")
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        kineto = {
            n: ingest_kineto.run_kineto(n, folder, options.peers) for n in sorted(options.kineto)
        }
        nsys = {n: ingest_nsys.run_nsys(n, folder, options.peers) for n in sorted(options.nsys)}
    for costs in (kineto, nsys):
        for (smaller_count, smaller_cost), (count, larger_cost) in pairwise(costs.items()):
            if smaller_cost and larger_cost:
                times = larger_cost.seconds / smaller_cost.seconds
                print(f"{count / smaller_count:.2f} x as many events took {times:.2f} x")
    met = [ingest_kineto.meets_bar(copies, cost) for copies, cost in kineto.items()]
    met += [ingest_nsys.meets_bar(kernels, cost) for kernels, cost in nsys.items()]
    return int(not all(met))


if __name__ == "__main__":
    sys.exit(main())

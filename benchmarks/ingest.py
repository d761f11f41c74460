"""Time and memory of `spark-prof import` and `report` on large foreign traces, beside the peers.

Every line is a fresh process, on the same file and in the same run, with two cores. The last
column says how many times as long as spark-prof it took.

usage: python benchmarks/ingest.py [--kineto COPIES...] [--peers PYTHON] [--keep FOLDER]
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from itertools import pairwise
from pathlib import Path

from ingest_kineto import SOURCE, meets_bar, run_kineto


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kineto", type=int, nargs="*", default=[10, 20],
                        help="how often the real trace is repeated")  # fmt: skip
    # PyPI's tracelens is another project than AMD's.
    parser.add_argument("--peers", help="a Python with HolisticTraceAnalysis and AMD's TraceLens")
    parser.add_argument("--keep", type=Path, help="make the traces there and keep them")
    options = parser.parse_args()
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])
    if not SOURCE.exists():
        raise SystemExit(f"no {SOURCE}")
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        costs = {n: run_kineto(n, folder, options.peers) for n in sorted(options.kineto)}
    for (few, less), (many, more) in pairwise(costs.items()):
        if less and more:
            print(f"{many / few:.2f} x as many events took {more.seconds / less.seconds:.2f} x")
    return int(not all(meets_bar(copies, cost) for copies, cost in costs.items()))


if __name__ == "__main__":
    sys.exit(main())

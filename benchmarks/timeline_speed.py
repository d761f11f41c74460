"""Time and size of the time line's pictures of one large recording, from all of it to one kernel.

Each range is made several times; told are the shortest wall time, which is what it takes where
nothing else runs, and the processor time of all threads.

usage: python benchmarks/timeline_speed.py BUNDLE [--runs 7]

It fails where the marks and the figure of a range take longer than a second, or the figure is
larger than a megabyte. `report_speed.py --kind graphs --millions 10 --keep FOLDER` makes a bundle.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from typing import TypeVar

from spark_prof.analyzers.views.timeline import MOST_MARKS, timeline
from spark_prof.analyzers.views.timeline_moves import recorded
from spark_prof.dashboards.chart_timeline import PIXELS, timeline_figure
from spark_prof.datasets.prepared import prepare

BAR_SECONDS, BAR_BYTES = 1.0, 1_000_000
PARTS = (1, 2, 10, 100, 1_000, 10_000, 100_000, 1_000_000)
_Result = TypeVar("_Result")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bundle")
    parser.add_argument("--runs", type=int, default=7)
    options = parser.parse_args()
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])
    shown = prepare(options.bundle)
    kernels, steps = shown.kernels, shown.steps
    everything = recorded(kernels, steps)
    origin = int(kernels.start_ns[0])
    print(f"{len(kernels):,} kernels, {len(steps):,} steps, 2 cores, best of {options.runs} runs")
    print("   kernels  marks        marks s (processor)  figure s  figure kB")
    failed = False
    for part in PARTS:
        length = everything.length_ns // part
        shape = everything.around(everything.from_ns + everything.length_ns // 2, length)
        marks_s, busy, drawn = best(
            options.runs,
            lambda r=shape: timeline(kernels, steps, r.from_ns, r.to_ns, PIXELS),
        )
        figure_s, _, text = best(
            options.runs, lambda d=drawn: timeline_figure(d, {0: kernels}, origin).to_json()
        )
        print(
            f"{drawn.kernels:10,}  {len(drawn.marks):5,}  {marks_s:13.3f}  {busy:10.3f}  "
            f"{figure_s:10.3f}  {len(text) / 1e3:9.0f}"
        )
        failed |= marks_s + figure_s > BAR_SECONDS or len(text) > BAR_BYTES
        failed |= len(drawn.marks) > MOST_MARKS
    return int(failed)


def best(runs: int, made: Callable[[], _Result]) -> tuple[float, float, _Result]:
    """The shortest time that it took, its processor time, and what came of it."""
    times = []
    for _ in range(runs):
        began, busy = time.perf_counter(), time.process_time()
        result = made()
        times.append((time.perf_counter() - began, time.process_time() - busy))
    return min(wall for wall, _ in times), min(used for _, used in times), result


if __name__ == "__main__":
    raise SystemExit(main())

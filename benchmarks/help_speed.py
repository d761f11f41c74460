"""Time of `spark-prof --help` as a fresh process, beside that of an empty Python process.

usage: python benchmarks/help_speed.py
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Sequence

BAR_SECONDS, RUNS = 0.5, 10


def main() -> int:
    commands = {
        "spark-prof --help": ("-m", "spark_prof.cli.main", "--help"),
        "python -c pass": ("-c", "pass"),
    }
    times: dict[str, list[float]] = {name: [] for name in commands}
    for _ in range(RUNS):
        for name, words in commands.items():
            times[name].append(seconds(words))
    help_seconds, empty_seconds = (statistics.median(values) for values in times.values())
    print(f"spark-prof --help  {help_seconds:.3f} s  (bar {BAR_SECONDS} s)")
    print(f"python -c pass     {empty_seconds:.3f} s")
    print(f"ratio              {help_seconds / empty_seconds:.1f}")
    return int(help_seconds > BAR_SECONDS)


def seconds(words: Sequence[str]) -> float:
    """Wall time of a fresh Python process."""
    begin = time.perf_counter()
    subprocess.run([sys.executable, *words], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - begin


if __name__ == "__main__":
    sys.exit(main())

"""`spark-prof tune` that measures for less time and waits less for what hangs.

usage: python -m tests.engine.quick_tune WORDS...
"""

from __future__ import annotations

import sys

from spark_prof.cli.main import main
from spark_prof.tune import bench, search, tune_engines

bench.LONGEST_S, search._CONFIRM_S = 3.0, 8.0
tune_engines._START_SECONDS = 1.5
tune_engines._LONGEST_HANG_S = tune_engines._SHORTEST_HANG_S = 10.0

if __name__ == "__main__":
    sys.argv = ["spark-prof", "tune", *sys.argv[1:]]
    sys.exit(main())

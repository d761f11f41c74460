"""benchmarks/ab.py."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

from benchmarks.ab import ROOT

ENDS_SLOWLY = """
import signal, sys, time
def end(*_):
    time.sleep(1.0)
    print("ended in order", file=sys.stderr, flush=True)
    sys.exit(0)
signal.signal(signal.SIGINT, end)
print("runs", file=sys.stderr, flush=True)
time.sleep(600)
"""
WAITS = f"""
import sys
from benchmarks.ab import exit_code_of
exit_code_of([sys.executable, "-c", {ENDS_SLOWLY!r}])
"""


def test_ctrl_c_leaves_spark_prof_the_time_to_end_its_engines() -> None:
    command = [sys.executable, "-c", WAITS]
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, process_group=0) as case:
        assert case.stderr is not None
        assert case.stderr.readline() == b"runs\n"
        os.killpg(case.pid, signal.SIGINT)
        assert b"ended in order" in case.stderr.read()

"""A real vLLM engine whose worker is killed while `record` lives: what is missing is told."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from spark_prof import load
from spark_prof.traces.chunks import StepCounts, pieces_folder, read_counts
from tests.engine.conftest import ROOT, SPARK_PROF, report_of

_ENOUGH = 280
"""Steps: pieces are written, and the worker is stopped where a part of the next waits."""


def counted(pieces: Path) -> StepCounts | None:
    return read_counts(pieces).get("rank0")


def flushed(pieces: Path) -> int:
    return sum(len(np.load(path)) for path in pieces.glob("rank0.*.steps.npy"))


def stopped_within_a_piece(pieces: Path, worker: int, end: float) -> int:
    """Steps flushed by a worker that stands still, with others that are not flushed yet."""
    while True:
        os.kill(worker, signal.SIGSTOP)
        while " (stopped)" not in Path(f"/proc/{worker}/status").read_text():
            time.sleep(0.01)
        counts, steps = counted(pieces), flushed(pieces)
        if counts is not None and counts.recorded > steps > 0:
            return steps
        os.kill(worker, signal.SIGCONT)
        assert time.monotonic() < end
        time.sleep(0.1)


def test_a_killed_worker_is_told_to_the_step(
    models: dict[str, Path], environment: dict[str, str], tmp_path: Path
) -> None:
    folder = tmp_path / "b"
    pieces = pieces_folder(folder)
    command = [sys.executable, "-m", "demo.workload", str(models["tiny-dense"]),
               "--batch", "1", "--prompt", "8", "--tokens", "24", "--rounds", "100000"]  # fmt: skip
    with open(tmp_path / "log", "wb") as log:
        recorder = subprocess.Popen(
            [*SPARK_PROF, "record", "-o", str(folder), "--steps", "0", "--", *command],
            cwd=ROOT, env=environment, stdout=log, stderr=log,
        )  # fmt: skip
    try:
        end = time.monotonic() + 900
        while (counts := counted(pieces)) is None or counts.recorded < _ENOUGH:
            assert recorder.poll() is None, (tmp_path / "log").read_text()[-4000:]
            assert time.monotonic() < end
            time.sleep(0.05)
        worker = json.loads((pieces / "rank0.facts.json").read_text())["pid"]
        steps = stopped_within_a_piece(pieces, worker, end)
        os.kill(worker, signal.SIGKILL)
        kept_open = os.open(pieces / "counts.rank0.bin", os.O_RDONLY)  # the pieces will be gone
        recorder.wait(600)
        ran = int.from_bytes(os.pread(kept_open, 8, 96), "little")
        os.close(kept_open)
    finally:
        recorder.kill()
        recorder.wait()
    bundle = load(folder)
    kept = len(bundle.frame("steps", 0))
    lines = [line for line in bundle.meta.lost if line.startswith("rank0: ")]
    [line] = [line for line in lines if "were not flushed" in line]
    count = re.match(r"rank0: ([0-9]+) recorded steps were not flushed", line)
    assert count, lines
    assert kept == steps
    assert kept + int(count[1]) == ran >= _ENOUGH
    assert f"process {worker} was killed by signal 9 (SIGKILL)" in line
    assert bundle.meta.state == "interrupted"
    assert f"lost: {line}" in report_of(folder)["notes"]

"""A real vLLM engine whose KV cache is too small: what is read again is prefill, row by row."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from spark_prof import load
from tests.engine.conftest import ROOT, SPARK_PROF


def test_steps_of_a_full_kv_cache_are_those_of_the_scheduler(
    models: dict[str, Path], environment: dict[str, str], tmp_path: Path
) -> None:
    """In pieces of 48 tokens; one of a whole request is in tests/profiler/test_batch.py."""
    argv = [
        *SPARK_PROF, "record", "-o", str(tmp_path / "b"), "--steps", "0", "--", sys.executable,
        "-m", "tests.engine.preempting_engine", str(models["tiny-dense"]),
    ]  # fmt: skip
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-8000:]
    [line] = [text for text in done.stdout.splitlines() if text.startswith("PREEMPTED ")]
    truth = json.loads(line.removeprefix("PREEMPTED "))["rows"]
    steps = load(tmp_path / "b").frame("steps", 0).sort_values("step")
    columns = ["prefill_tokens", "decode_tokens", "preempted"]
    assert steps[columns].to_numpy().tolist() == truth
    assert steps["preempted"].sum() > 0
    assert steps["recomputed_tokens"].sum() > 0
    assert (steps["decode_tokens"] == steps["decode_requests"]).all()

"""A slow function of the scheduler, seen from outside while a real engine runs."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from spark_prof.errors import CommandError
from spark_prof.profiler.py_spy_program import check_allowed, find_py_spy
from spark_prof.traces.bundle import Bundle

from .conftest import ENVIRONMENT, ONE_PROCESS, ROOT, SPARK_PROF

SLOW = {"scheduler_cls": "tests.engine.slow_scheduler.SlowScheduler", "async_scheduling": False}


def test_a_slow_function_of_the_scheduler_is_named(models: dict[str, Path], tmp_path: Path) -> None:
    try:
        check_allowed(find_py_spy())
    except CommandError as error:
        pytest.skip(str(error))
    workload = [
        SPARK_PROF[0], "-m", "demo.workload", str(models["tiny-dense"]), "--batch", "2",
        "--tokens", "100", "--rounds", "2", "--engine", json.dumps(SLOW),
    ]  # fmt: skip
    options = ["--host", "--duty-cycle", "1/1", "--steps", "0", "--warmup-steps", "10"]
    out = tmp_path / "bundle"
    run = subprocess.run(
        [*SPARK_PROF, "record", *options, "--out", str(out), "--", *workload],
        cwd=ROOT, env=dict(os.environ) | ENVIRONMENT | ONE_PROCESS | {"PYTHONPATH": str(ROOT)},
        capture_output=True, text=True,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr[-3000:]
    bundle = Bundle(out)
    assert not [line for line in bundle.meta.lost if line.startswith("host")]
    stacks = bundle.frame("stacks", 0)
    main = stacks[stacks["main"].to_numpy(bool)]
    assert set(main["process"].astype(str)) == {"rank0"}
    slow = main["stack"].astype(str).str.endswith("slow_scheduler.py:slow_policy")
    # Whoever else has the processor, a step waits 20 ms and more for it.
    assert slow.mean() > 0.05
    report = [*SPARK_PROF, "report", str(bundle.path), "--format", "json"]
    host = json.loads(subprocess.run(report, capture_output=True, check=True).stdout)["host"]
    assert sum(row["samples"] for row in host["stages"]) == host["gap_samples"] > 30
    assert host["unknown"] < 0.1
    assert {row["process"] for row in host["busy"]} <= {"rank0"}
    assert host["limits"]["omp_threads"] == "1"

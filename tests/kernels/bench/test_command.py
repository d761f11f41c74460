"""`benchmarks/kernels.py` from the command line."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_without_a_gpu_it_says_so(tmp_path: Path) -> None:
    script = ROOT / "benchmarks" / "kernels.py"
    command = [sys.executable, str(script), str(tmp_path / "result.json")]
    env = os.environ | {"CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.endswith("and torch finds none\n")
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []

"""A comparison whose engine runs in a real container: podman, with this machine as its image."""

from __future__ import annotations

import resource
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.engine.test_ab import ENGINE, KERNELS, compare

MOST_FILES = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
PODMAN = [
    *("podman", "--runtime", "runc", "run", "--network", "none", "--ipc=host"),
    *("--ulimit", f"nofile={MOST_FILES}:{MOST_FILES}", "--ulimit", "nproc=1024:1024"),
]
HERE = ["--rootfs", "/:O"]
"""The files of this machine, with what the container writes beside them."""


def can_run() -> bool:
    """Whether this machine has podman and lets it run a container."""
    if shutil.which("podman") is None or shutil.which("runc") is None:
        return False
    try:
        done = subprocess.run(
            [*PODMAN, "--rm", *HERE, "/bin/true"], capture_output=True, timeout=60
        )
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0


@pytest.mark.slow
def test_a_comparison_with_recordings(
    models: dict[str, Path], environment: dict[str, str], tmp_path: Path
) -> None:
    if not can_run():
        pytest.skip("no podman that can run a container here")
    server = [
        *PODMAN, "-d", "--name", "serving", "-p", "8000:8000",
        *("-e", "VLLM_CPU_KVCACHE_SPACE=1", "-e", "HF_HUB_OFFLINE=1"), *HERE,
        str(Path(sys.executable).with_name("vllm")), "serve", str(models["tiny-dense"]), *ENGINE,
    ]  # fmt: skip
    options = "--batch-sizes 1 --prefill none --context 16 --gate-tokens 8 --seconds 1"
    done = compare(tmp_path / "result", environment, f"norm={KERNELS}:right", options, server)
    assert done.code == 0, done.errors
    assert [gate.verdict.passed for gate in done.result.gates] == [True]
    assert [row.phase for row in done.result.runs] == ["decode"]
    assert {recording.side for recording in done.result.recordings} == {"a", "b"}
    left = subprocess.run(["podman", "ps", "-aq"], capture_output=True, text=True, check=True)
    assert left.stdout == ""

"""A whole `spark-prof tune` on a real vLLM engine on the CPU, whose norm a plugin has made slow."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from spark_prof.tune.tune_result import TuneResult, read_tune
from tests.engine.conftest import ONE_PROCESS, ROOT, SPARK_PROF
from tests.tune.slow_norm import installed

pytestmark = pytest.mark.timeout(1800)
KERNELS = ROOT / "tests" / "tune" / "kernels" / "planted.py"
ENGINE = [
    "--load-format", "dummy", "--max-model-len", "128", "--max-num-seqs", "4",
    "--gpu-memory-utilization", "0.3", "--enforce-eager",
    "--max-num-batched-tokens", "1024",  # kernels are tried on so many
]  # fmt: skip
OWN = ("--skip=--no-enforce-eager", "--skip=VLLM_CPU_ATTN_SPLIT_KV=0")
"""What this machine would have tried too, which takes engines of their own."""
SLOTS = {"fast": "norm", "slow": "o", "wrong": "mlp", "crashes": "qkv", "hangs": "lm_head"}


@dataclass(frozen=True)
class Done:
    """A run of the command."""

    code: int
    output: str
    errors: str
    folder: Path

    @property
    def result(self) -> TuneResult:
        return read_tune(self.folder / "result.json")


@pytest.fixture(scope="module")
def done(
    models: dict[str, Path], environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Done:
    """A right norm, which undoes what the plugin does, beside four planted kernels.

    What is planted is far from noise: little time on each shows it.
    """
    folder = tmp_path_factory.mktemp("tune")
    plugin = installed(folder / "plugin")
    sides = [f"--try={slot}={KERNELS}:{name}" for name, slot in SLOTS.items()]
    argv = [
        sys.executable, "-m", "tests.engine.quick_tune", "--minutes", "25", "--batch-sizes", "1",
        "--context", "16", "--gate-tokens", "8", "-o", str(folder / "run"), *sides, *OWN,
        "--", str(models["tiny-dense"]), *ENGINE,
    ]  # fmt: skip
    variables = {"PYTHONPATH": f"{ROOT}:{plugin}"} | ONE_PROCESS
    found = subprocess.run(
        argv, env=environment | variables, capture_output=True, text=True, cwd=ROOT
    )
    return Done(found.returncode, found.stdout, found.stderr, folder / "run")


def test_the_slow_norm_is_found_and_its_removal_confirmed(done: Done) -> None:
    assert done.code == 0, done.errors[-4000:]
    assert done.result.finished
    assert done.result.answer == (f"norm={KERNELS}:fast",)
    [timed] = done.result.times
    assert timed.gain is not None
    assert timed.gain.low > 1
    assert timed.gain.value > 1.2
    assert done.result.environment["SPARK_PROF_SWAPS"] == f"norm={KERNELS}:fast"


def test_what_is_planted_is_told_and_not_chosen(done: Done) -> None:
    told = {each.name.rpartition(":")[2]: each for each in done.result.tried}
    verdicts = {name: told[name].verdict for name in SLOTS}
    assert verdicts == {
        "fast": "chosen", "slow": "slower", "wrong": "changes answers", "crashes": "failed",
        "hangs": "failed",
    }  # fmt: skip
    assert "building" in told["crashes"].why
    assert "has not ended" in told["hangs"].why


def test_the_engine_was_recorded_and_its_own_candidates_listed(
    done: Done, environment: dict[str, str]
) -> None:
    recording = done.folder / "recording"
    argv = [*SPARK_PROF, "tune", "--list", "--from", str(recording), "--", "a/model"]
    listed = subprocess.run(argv, env=environment, capture_output=True, text=True, cwd=ROOT)
    assert listed.returncode == 0, listed.stderr
    assert "Left out" in listed.stdout
    assert all(each.why for each in done.result.left_out)


def test_one_command_serves_the_answer(done: Done) -> None:
    assert done.result.serve.startswith("vllm serve ")
    assert "export SPARK_PROF_SWAPS=norm=" in done.output

"""From a recording to what serves the change, in containers: each command is one that was printed.

The stand-in gives each container a root of its own: what is not mounted is not there.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from spark_prof.profiler.launcher import record
from spark_prof.profiler.settings import Settings
from tests.ab.engines import run
from tests.container_stand_in import can_change_root, image_folders, stand_in
from tests.profiler.conftest import FAKE_VLLM
from tests.support import program

pytestmark = pytest.mark.slow

COMPOSE = """\
services:
  demo:
    image: image
    command: {python} {script}
  serving:
    image: image
    command: vllm serve m
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a compose file, and docker on the PATH."""
    if not can_change_root():
        pytest.skip("only root may give a container a root of its own")
    stand_in(tmp_path / "bin/docker")
    image = tmp_path / "image"
    image.mkdir()
    tests = str(Path(__file__).parent / "profiler")
    script = image / "fake_vllm.py"
    script.write_text(FAKE_VLLM.format(tests=tests, steps=5, then="pass", code=0))
    (tmp_path / "compose.yaml").write_text(COMPOSE.format(python=sys.executable, script=script))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("STAND_IN", str(tmp_path / "asked.jsonl"))
    monkeypatch.setenv("STAND_IN_IMAGE", image_folders(image, tmp_path / "bin"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    return tmp_path


def test_a_service_is_recorded(folder: Path) -> None:
    settings = Settings(str(folder / "rec"), steps=0, backend="none")
    bundle, code = record(["docker", "compose", "run", "--rm", "demo"], settings, lambda _: None)
    assert code == 0
    assert bundle.frame("steps", 0)["step"].tolist() == list(range(5))
    assert bundle.meta.command == ("docker", "compose", "run", "--rm", "demo")
    assert {path.stat().st_uid for path in (folder / "rec").rglob("*")} == {os.geteuid()}


def test_what_a_comparison_prints_serves(folder: Path) -> None:
    done = run(
        folder, "--b", "moe=spark_prof", "--batch-sizes", "1", "--prefill", "none",
        "--timeout", "300", model={"gains": {"moe=spark_prof": 1.5}},
        words="compose run --rm serving", program="docker",
    )  # fmt: skip
    assert done.code == 0, done.errors
    [printed] = re.findall("to serve it: (.*)", done.errors)
    expected = "spark-prof ab --apply --b moe=spark_prof -- docker compose run --rm serving"
    assert printed == f"{expected} vllm serve m"
    root = str(Path(__file__).parents[1])
    told = subprocess.run(
        [sys.executable, "-m", "spark_prof", *shlex.split(printed)[1:]],
        env={**os.environ, "PYTHONPATH": root}, capture_output=True, text=True,
    )  # fmt: skip
    assert told.returncode == 0, told.stderr
    code = "import spark_prof, os; print(spark_prof.__file__, os.environ['SPARK_PROF_SWAPS'])"
    program(folder / "bin/vllm", f'exec "{sys.executable}" -c "{code}"')
    served = subprocess.run(shlex.split(told.stdout), capture_output=True, text=True)
    assert served.stdout == "/opt/spark-prof/spark_prof/__init__.py moe=spark_prof\n", served.stderr

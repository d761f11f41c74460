"""The container that serves a side: as it was typed, with spark-prof in it where that is needed."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from spark_prof.ab.apply import container_serve, engine_of_result, kept_package
from spark_prof.ab.command import engine_command
from spark_prof.ab.result import AbOutcome, SideFacts, to_json
from spark_prof.ab.sides import parse_side
from spark_prof.cli.main import main
from tests.container_stand_in import can_change_root, image_folders, stand_in
from tests.rows import each_row
from tests.support import program, refusal

DOCKER = "docker run -d --gpus all -p 8000:8000 vllm-node vllm serve m/x"


@pytest.fixture(autouse=True)
def _docker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(tmp_path / "bin/docker")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setenv("STAND_IN", str(tmp_path / "asked.jsonl"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def served(side: str, line: str = DOCKER) -> str:
    return shlex.join(container_serve(parse_side(side), engine_command(shlex.split(line))))


@each_row(
    ("side", "line", "is_now"),
    [
        ("--moe-backend marlin", DOCKER, f"{DOCKER} --moe-backend marlin"),
        ("OMP_NUM_THREADS=4", DOCKER,
         "docker run -d --gpus all -p 8000:8000 -e OMP_NUM_THREADS=4 vllm-node vllm serve m/x"),
        ("OMP_NUM_THREADS=4", "docker run -e OMP_NUM_THREADS=8 vllm-node vllm serve m/x",
         "docker run -e OMP_NUM_THREADS=4 vllm-node vllm serve m/x"),
        ("--max-num-seqs 4", "docker run vllm-node bash -c 'vllm serve m/x'",
         "docker run vllm-node bash -c 'vllm serve m/x --max-num-seqs 4'"),
        ("--no-enforce-eager", "docker run vllm-node vllm serve m/x --enforce-eager",
         "docker run vllm-node vllm serve m/x --no-enforce-eager"),
    ],
)  # fmt: skip
def test_what_serves_a_side(side: str, line: str, is_now: str) -> None:
    assert served(side, line) == is_now


@pytest.mark.slow
def test_swaps_bring_spark_prof_and_the_kernel_s_file(tmp_path: Path) -> None:
    kernel = tmp_path / "mine/my.py"
    kernel.parent.mkdir()
    kernel.write_text("def build(layer): ...\n")
    line = served(f"o=fp8,norm={kernel}:build")
    package = kept_package()
    assert f"-v {package}:/opt/spark-prof:ro -v {kernel.parent}:{kernel.parent}:ro" in line
    assert f"-e PYTHONPATH=/opt/spark-prof -e SPARK_PROF_SWAPS=o=fp8,norm={kernel}:build" in line
    assert (package / "spark_prof/plugin.py").is_file()
    assert kept_package() == package  # its name is that of its content
    assert [path.name for path in package.parent.iterdir()] == [package.name]


@pytest.mark.slow
def test_the_line_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a container that has nothing of this host but what the line mounts."""
    if not can_change_root():
        pytest.skip("only root may give a container a root of its own")
    prints = (
        "import spark_prof.plugin, os; print(spark_prof.__file__, os.environ['SPARK_PROF_SWAPS'])"
    )
    program(tmp_path / "image/vllm", f'exec "{sys.executable}" -c "{prints}"')
    monkeypatch.setenv("STAND_IN_IMAGE", image_folders(tmp_path / "image"))
    monkeypatch.setenv("PATH", f"{tmp_path / 'image'}:{os.environ['PATH']}")
    done = subprocess.run(
        shlex.split(served("o=fp8", "docker run image vllm serve m/x")),
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.stdout == "/opt/spark-prof/spark_prof/__init__.py o=fp8\n", done.stderr


def test_a_result_that_a_container_gave(tmp_path: Path) -> None:
    path = tmp_path / "result.json"

    def told(line: str) -> str:
        words = ("spark-prof", "ab", "--b", "o=fp8", "--", *shlex.split(line))
        sides = (SideFacts("a", "stock", "", ("m",), {}), SideFacts("b", "o", "o=fp8", ("m",), {}))
        found = AbOutcome(
            model="m", mode="one engine", mode_why="", command=words, taken="", sides=sides
        )
        path.write_bytes(to_json(found))
        engine = engine_of_result(path)
        return shlex.join(engine.text) if engine else ""

    assert told(DOCKER) == DOCKER
    assert told("vllm serve m/x") == ""
    with refusal("type it: spark-prof ab --apply --b SIDE -- docker run ..."):
        told("docker run -v /:/host evil/image vllm serve m/x")


def test_the_command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def typed(*options: str, words: str = DOCKER) -> str:
        argv = ["spark-prof", "ab", "--apply", "--b=--moe-backend=marlin", *options, "--"]
        monkeypatch.setattr("sys.argv", [*argv, *shlex.split(words)])
        assert main() == 0
        return capsys.readouterr().out

    assert typed() == f"{DOCKER} --moe-backend=marlin\n"
    assert json.loads(typed("--format", "json"))["serve"] == f"{DOCKER} --moe-backend=marlin"
    server = ["python3", "-m", "vllm.entrypoints.openai.api_server", "--model", "m/x"]
    monkeypatch.setattr("sys.argv", ["spark-prof", "ab", "--apply", "--b=o=fp8", "--", *server])
    assert main() == 2
    assert "--apply takes one result.json" in capsys.readouterr().err

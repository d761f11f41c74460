"""Engines in containers: what is taken from `docker run`, and a comparison through a stand-in."""

from __future__ import annotations

import json
import os
import shlex
from pathlib import Path

import pytest

from spark_prof.ab.command import engine_command
from spark_prof.profiler.container_run import container_run
from tests.ab.engines import fake_vllm, run
from tests.container_stand_in import can_change_root, image_folders, stand_in
from tests.rows import each_row
from tests.support import refusal
from tests.tune.test_command import TUNE

pytestmark = pytest.mark.slow

SLOW_TUNE = (*TUNE, "--timeout", "120", "--minutes", "12")
"""Two Pythons start here for one of an engine that is no container."""


@pytest.fixture
def engines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A PATH with docker and podman that note what they are asked and run it on this host."""
    folder = fake_vllm(tmp_path / "bin")
    for name in ("docker", "podman", "sudo"):
        stand_in(folder / name)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    monkeypatch.setenv("STAND_IN", str(tmp_path / "asked.jsonl"))
    return tmp_path


@each_row(
    ("line", "options", "inside"),
    [
        ("docker run --gpus all image vllm serve m", "--gpus all", "vllm serve m"),
        ("docker run -itd --rm --name x -p 8000:8000 image vllm serve m", "", "vllm serve m"),
        ("docker run -dp 8000:8000 -v/a:/b image vllm serve m", "-v /a:/b", "vllm serve m"),
        ("docker run --gpus=all -e A=1 image --model m", "--gpus all -e A=1",
         "vllm serve --model m"),
        ("docker run image m --port 1", "", "vllm serve m --port 1"),
        ("docker run --restart always --publish=1:1 -- image m", "", "vllm serve m"),
        ("docker run --entrypoint vllm image serve m", "", "vllm serve m"),
        ("docker run --entrypoint /bin/bash image -lc 'exec vllm serve m'", "", "vllm serve m"),
        ("docker run image bash -c -i 'vllm serve m -tp 2'", "", "vllm serve m -tp 2"),
        ("podman run --entrypoint '[\"vllm\",\"serve\"]' image m", "", "vllm serve m"),
        ("podman --root /r run --userns keep-id image vllm serve m", "--userns keep-id",
         "vllm serve m"),
        ("docker container run --init=true image python3 -m vllm.entrypoints.openai.api_server",
         "--init=true", "python3 -m vllm.entrypoints.openai.api_server"),
    ],
)  # fmt: skip
def test_what_a_server_needs_is_left_out(
    engines: Path, line: str, options: str, inside: str
) -> None:
    found, words = container_run(shlex.split(line))
    assert (" ".join(found.options), " ".join(words)) == (options, inside)
    assert found.image == "image"
    assert found.engine[0] in ("docker", "podman")


@each_row(
    ("entrypoint", "line", "inside"),
    [
        (["vllm", "serve"], "docker run image m", "vllm serve m"),
        (["python3", "-m", "vllm.entrypoints.openai.api_server"], "docker run image --model m",
         "python3 -m vllm.entrypoints.openai.api_server --model m"),
        (["/opt/nvidia/nvidia_entrypoint.sh"], "docker run image vllm serve m", "vllm serve m"),
        (None, "docker run image m", "vllm serve m"),
    ],
)  # fmt: skip
def test_the_image_says_what_it_runs(
    engines: Path,
    monkeypatch: pytest.MonkeyPatch,
    entrypoint: list[str] | None,
    line: str,
    inside: str,
) -> None:
    monkeypatch.setenv("STAND_IN_ENTRYPOINT", json.dumps(entrypoint))
    _, words = container_run(shlex.split(line))
    assert " ".join(words) == inside


@each_row(
    ("line", "says"),
    [
        ("docker run image bash -c 'pip install x && vllm serve m'", "a script of bash"),
        ("docker run image bash", "a script of bash"),
        ("docker run image python3 serve.py", "image runs python3, which is not known"),
        ("docker run --entrypoint my-server image m", "image runs my-server"),
        ("docker run", "no IMAGE"),
        ("docker run --new-option 1 image", "write --new-option=VALUE"),
        ("docker run image vllm bench serve", "'vllm bench serve' is no engine"),
        ("docker compose up vllm", "write: docker compose run --rm --service-ports vllm"),
        ("docker exec box vllm serve m", "'docker exec' enters a container"),
    ],
)
def test_refusals(engines: Path, line: str, says: str) -> None:
    with refusal(says):
        engine_command(shlex.split(line))


def test_a_comparison_in_a_container(engines: Path, tmp_path: Path) -> None:
    kernel = Path(__file__).parents[1] / "swaps/kernels/faulty.py"
    done = run(
        tmp_path, "--b", f"moe={kernel}:right", "--batch-sizes", "1", "--prefill", "none",
        words="run -d --gpus all --name serving -p 8000:8000 -e A=1 image vllm serve m",
        program="docker",
    )  # fmt: skip
    assert done.code == 0, done.errors
    assert done.result.runs
    lines = Path(os.environ["STAND_IN"]).read_text().splitlines()
    ran = [asked for asked in map(json.loads, lines) if asked[0] == "run"]
    assert len(ran) == 1
    words = " ".join(ran[0])
    assert "--gpus all -e A=1 " in words
    assert "serving" not in words
    assert "8000" not in words
    mounts = [word for before, word in zip(ran[0], ran[0][1:], strict=False) if before == "-v"]
    assert f"{kernel.parent}:{kernel.parent}:ro" in mounts
    assert f"{done.folder}:{done.folder}" in mounts
    # Nothing of it is left, whatever became of the command that started it.
    name = ran[0][ran[0].index("--name") + 1]
    assert json.loads(lines[-1]) == ["rm", "--force", name]


COMPOSE = """\
services:
  serving:
    image: image
    command: vllm serve m
    ports: ["8000:8000"]
    environment: {A: "1"}
"""


@pytest.fixture
def compose(engines: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder with a compose file, and containers with a root of their own where that can be."""
    (engines / "compose.yaml").write_text(COMPOSE)
    monkeypatch.chdir(engines)
    if can_change_root():
        monkeypatch.setenv("STAND_IN_IMAGE", image_folders(engines / "bin"))


@pytest.mark.usefixtures("compose")
def test_a_comparison_of_a_service(tmp_path: Path) -> None:
    """The command is that of the compose file; the container sees what is mounted alone."""
    kernel = tmp_path / "mine" / "faulty.py"
    kernel.parent.mkdir()
    kernel.write_bytes((Path(__file__).parents[1] / "swaps/kernels/faulty.py").read_bytes())
    done = run(
        tmp_path, "--b", f"moe={kernel}:right", "--batch-sizes", "1", "--prefill", "none",
        "--timeout", "120", words="compose run --rm --service-ports serving", program="docker",
    )  # fmt: skip
    assert done.code == 0, done.errors
    asked = [json.loads(line) for line in Path(os.environ["STAND_IN"]).read_text().splitlines()]
    ran = [words for words in asked if words[:2] == ["compose", "run"]]
    assert len(ran) == 1
    assert all("--service-ports" not in words and "--no-deps" in words for words in ran)
    assert asked[-1][:2] == ["rm", "--force"]


def test_the_words_of_a_service_are_those_to_type(
    compose: None, engines: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = engine_command(["docker", "compose", "run", "serving"])
    assert shlex.join(found.text) == "docker compose run serving vllm serve m"
    assert found.arguments == ("m",)
    found = engine_command(["docker", "compose", "run", "serving", "vllm", "serve", "other"])
    assert shlex.join(found.text) == "docker compose run serving vllm serve other"


def test_what_docker_says_is_told(engines: Path, tmp_path: Path) -> None:
    done = run(tmp_path, "--b", "moe=spark_prof", words="run absent vllm serve m", program="docker")
    assert done.code == 2
    assert "No such image: absent" in done.errors


def test_a_tune_in_a_container(engines: Path, tmp_path: Path) -> None:
    kernel = Path(__file__).parents[1] / "swaps/kernels/faulty.py"
    done = run(
        tmp_path, "--try", "o=fp8", "--try", f"norm={kernel}:right",
        model={"noise": 0.001, "gains": {"o=fp8": 1.3}},
        words="run -d --name serving image vllm serve m", command=SLOW_TUNE, program="docker",
    )  # fmt: skip
    assert done.code == 0, done.errors
    apply = "$ spark-prof ab --apply --b o=fp8 -- docker run -d --name serving image vllm serve m"
    assert apply in done.output
    assert "export" not in done.output
    lines = [json.loads(line) for line in Path(os.environ["STAND_IN"]).read_text().splitlines()]
    ran = [asked for asked in lines if asked[0] == "run"]
    assert len(ran) > 1
    assert all("serving" not in asked for asked in ran)
    assert any(f"{kernel.parent}:{kernel.parent}:ro" in asked for asked in ran)
    names = {asked[asked.index("--name") + 1] for asked in ran}
    removed = {asked[2] for asked in lines if asked[:2] == ["rm", "--force"]}
    assert len(names) == len(ran)
    assert removed <= names

"""Services of compose files: what is read of them, and what is put into `compose run`."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from spark_prof.profiler.compose import Service, _configuration, read_run, service_of
from spark_prof.profiler.container import (
    BUNDLE_TARGET,
    STAGING_TARGET,
    Mount,
    alone,
    container_command,
    without_terminal,
)
from spark_prof.profiler.container_run import container_user
from tests.rows import each_row
from tests.support import program, refusal

SPARK = """\
services:
  vllm-mxfp4:
    image: nvcr.io/nvidia/vllm:25.09-py3
    command: >
      vllm serve openai/gpt-oss-120b
      --port ${PORT:-8000} --max-num-seqs 8
    ports: ["8000:8000"]
    volumes:
      - ~/.cache/huggingface:/root/.cache/huggingface
      - {type: bind, source: ./harmony, target: /harmony}
      - /anonymous
    environment:
      PYTHONPATH: /image
      HF_TOKEN: $HF_TOKEN
    deploy:
      resources: {reservations: {devices: [{driver: nvidia, capabilities: [gpu]}]}}
  ui:
    build: .
    user: "1000:1000"
    entrypoint: ["python", "-m", "ui"]
    environment: [A=1, B]
    depends_on: [vllm-mxfp4]
"""
"""The first service is the compose file of a Spark's owner."""


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder with a compose file; docker answers in JSON, docker-compose in YAML."""
    import yaml

    monkeypatch.chdir(tmp_path)
    (tmp_path / "docker-compose.yml").write_text(SPARK)
    configured = json.dumps({"name": "me", **yaml.safe_load(SPARK)})
    answer = f"case \"$*\" in compose*) echo '{configured}';; *) exit 1;; esac"
    program(tmp_path / "bin/docker", answer)
    program(tmp_path / "bin/docker-compose", 'case "$*" in *json) exit 1;; esac; cat *.yml')
    program(
        tmp_path / "bin/podman-compose",
        "echo \"argument command: invalid choice: 'config' (choose from 'run')\" >&2; exit 2",
    )
    program(tmp_path / "bin/podman", "exit 1")
    program(tmp_path / "bin/sudo", 'exec "$@"')
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    monkeypatch.setenv("HF_TOKEN", "secret")
    _configuration.cache_clear()


def service(line: str) -> Service:
    found = service_of(read_run(shlex.split(line)))
    assert found is not None
    return found


@each_row("engine", ["docker compose", "docker-compose"])
def test_what_a_file_says(engine: str) -> None:
    found = service(f"{engine} run vllm-mxfp4")
    assert found.image == "nvcr.io/nvidia/vllm:25.09-py3"
    assert found.command[:3] == ("vllm", "serve", "openai/gpt-oss-120b")
    assert found.environment["PYTHONPATH"] == "/image"
    assert {"/root/.cache/huggingface", "/harmony", "/anonymous"} == set(found.targets)
    assert (found.alone, found.publishes, found.gpu, found.user) == (True, True, True, "")
    ui = service(f"{engine} run ui")
    assert ui.image.endswith("-ui")
    assert (ui.entrypoint, ui.environment) == (("python", "-m", "ui"), {"A": "1", "B": None})
    assert (ui.alone, ui.publishes, ui.gpu, ui.user) == (False, False, False, "1000:1000")


@each_row(
    ("line", "says"),
    [
        ("docker compose run llm", "has no service 'llm'; it has vllm-mxfp4, ui"),
        ("docker compose run", "no SERVICE"),
        ("docker compose run -d ui", "-d ends the command"),
        ("docker compose run --new ui", "--new is not known"),
        ("podman-compose run ui", "is too old: its run mounts no folder"),
    ],
)
def test_refusals(line: str, says: str) -> None:
    with refusal(says):
        service(line)


def test_what_docker_says_of_a_file_is_told(tmp_path: Path) -> None:
    program(tmp_path / "bin/docker", "echo 'yaml: line 3: did not find key' >&2; exit 15")
    with refusal("docker compose -f x.yaml config: yaml: line 3"):
        service("docker compose -f x.yaml run vllm")


@each_row(
    ("line", "is_now"),
    [
        ("docker compose run --rm + ui", "MOUNT -e PYTHONPATH=/opt/spark-prof -e STEPS=2"),
        ("docker compose -f x run + vllm-mxfp4 vllm serve m -e 1",
         "MOUNT -e PYTHONPATH=/opt/spark-prof:/image -e STEPS=2"),
        ("sudo docker compose run -e PYTHONPATH=/opt/spark-prof:/mine + vllm-mxfp4",
         "MOUNT -e STEPS=2"),
    ],
)  # fmt: skip
def test_what_is_put_into_a_service(line: str, is_now: str, tmp_path: Path) -> None:
    before, after = line.split(" + ")
    typed = shlex.split(f"{before} {after}".replace("/opt/spark-prof:/mine", "/mine"))
    staging = Mount(tmp_path, STAGING_TARGET)
    mounts = [staging, Mount(tmp_path, BUNDLE_TARGET, writable=True)]
    found = container_command(typed, mounts=mounts, environment={"STEPS": "2"})
    mounted = f"-v {tmp_path}:{STAGING_TARGET}:ro -v {tmp_path}:{BUNDLE_TARGET}"
    put = is_now.replace("MOUNT", mounted)
    assert found == shlex.split(f"{before} {put} {after}")


def test_a_folder_that_the_service_has_mounted_there(tmp_path: Path) -> None:
    with refusal("/harmony is where spark-prof mounts its own folder"):
        argv = ["docker", "compose", "run", "vllm-mxfp4"]
        container_command(argv, mounts=[Mount(tmp_path, "/harmony")], environment={})


@each_row(
    ("line", "terminal", "others"),
    [
        ("docker compose run --rm vllm-mxfp4", "docker compose run --rm -T vllm-mxfp4",
         "docker compose run --rm --no-deps vllm-mxfp4"),
        ("docker compose run -T ui vllm serve m", "docker compose run -T ui vllm serve m",
         "docker compose run -T ui vllm serve m"),
        ("docker compose run ui bash", "docker compose run ui bash", "docker compose run ui bash"),
        ("docker run image vllm", "docker run image vllm", "docker run image vllm"),
    ],
)  # fmt: skip
def test_no_terminal_and_no_other_service(line: str, terminal: str, others: str) -> None:
    assert shlex.join(without_terminal(shlex.split(line))) == terminal
    assert shlex.join(alone(shlex.split(line))) == others


def test_the_user_of_a_service() -> None:
    for line, user in (("docker compose run ui", 1000), ("docker compose run -u 7 ui", 7)):
        assert container_user(shlex.split(line)) == user

"""What is to be written instead of docker exec, as the running container and its image say it."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from spark_prof.profiler.commands import recognise
from tests.rows import each_row
from tests.support import program, refusal

BOX: dict[str, Any] = {
    "Config": {
        "Image": "vllm-dev:1",
        "Env": ["PATH=/usr/bin", "CUDA=13", "VLLM_LOGGING_LEVEL=DEBUG", "HF_TOKEN=hf_abcdefghijkl"],
    },
    "HostConfig": {"IpcMode": "host", "NetworkMode": "bridge", "ShmSize": 67108864,
                   "DeviceRequests": [{"Capabilities": [["gpu"]]}]},
}  # fmt: skip
IMAGE = {"Config": {"Env": ["PATH=/usr/bin", "CUDA=13"]}}


def answers(folder: Path, name: str, box: dict[str, Any] | None) -> None:
    for file, content in (("box", box), ("image", IMAGE)):
        (folder / f"{file}.json").write_text(json.dumps([content] if content else []))
    program(
        folder / "bin" / name,
        f'case "$*" in *"image inspect"*) cat {folder}/image.json;; '
        f"*inspect*) cat {folder}/box.json;; *) exit 1;; esac",
    )


@each_row(
    ("line", "says"),
    [
        ("docker exec -it box vllm serve m --port 1",
         "no mount any more; write: docker run --rm --volumes-from box --gpus all --ipc=host "
         "-e VLLM_LOGGING_LEVEL=DEBUG -e HF_TOKEN vllm-dev:1 vllm serve m --port 1"),
        ("docker exec -u 7 -e A=1 -w /work box bash -c 'vllm serve m'",
         "-e HF_TOKEN -u 7 -e A=1 -w /work vllm-dev:1 bash -c 'vllm serve m'"),
        ("docker --context x exec box vllm serve m", "write: docker --context x run --rm"),
        ("docker compose -f x.yml exec vllm vllm serve m",
         "write: docker compose -f x.yml run --rm --service-ports vllm vllm serve m"),
    ],
)  # fmt: skip
def test_what_to_write(
    line: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers(tmp_path, "docker", BOX)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    with refusal(says):
        recognise(shlex.split(line))


def test_what_podman_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host = {"Devices": [{"PathOnHost": "/dev/nvidia0"}], "IpcMode": "private", "ShmSize": 1 << 34}
    answers(tmp_path, "podman", {"Config": {"Image": "i", "Env": []}, "HostConfig": host})
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    words = "--device nvidia.com/gpu=all --shm-size=17179869184 i vllm serve m"
    with refusal(words):
        recognise(shlex.split("podman exec box vllm serve m"))


def test_a_container_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answers(tmp_path, "docker", None)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    for line in ("docker exec box vllm serve m", "docker exec", "docker exec -it"):
        with refusal("no mount any more; use 'docker run', or install spark-prof in the image"):
            recognise(shlex.split(line))

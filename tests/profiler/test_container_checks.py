"""What is said of a container that lacks a GPU, a Python or the right vLLM."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from spark_prof.profiler import container
from spark_prof.profiler.commands import Command
from spark_prof.profiler.compose import RunLine, read_run
from spark_prof.profiler.container import (
    gpu_to_add,
    missing_gpu,
    refuse_image,
    refuse_options,
    why_it_failed,
)
from spark_prof.profiler.launcher import _container_note
from tests.rows import each_row
from tests.support import program, refusal

SERVICES = """{"name": "me", "services": {
"with": {"image": "image", "deploy": {"resources": {"reservations": {"devices": [
  {"driver": "nvidia", "capabilities": ["gpu"]}]}}}, "ports": ["8000:8000"]},
"all": {"image": "image", "gpus": "all"},
"runtime": {"image": "image", "runtime": "nvidia"},
"without": {"image": "image"}}}"""


@pytest.fixture(autouse=True)
def _engines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "services.json").write_text(SERVICES)
    for name in ("docker", "podman", "nerdctl"):
        program(tmp_path / "bin" / name, f"cat {tmp_path / 'services.json'}")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    monkeypatch.chdir(tmp_path)


def line(words: str) -> RunLine:
    return read_run(shlex.split(words))


@each_row(
    ("words", "adds"),
    [
        ("docker run image", "--gpus all"),
        ("nerdctl run -e A=1 --device /dev/infiniband image", "--gpus all"),
        ("podman run image", "--device nvidia.com/gpu=all"),
        ("docker run --gpus all image", ""),
        ("docker run --gpus=all image", ""),
        ("docker run --runtime nvidia image", ""),
        ("docker run --privileged image", ""),
        ("docker run -e NVIDIA_VISIBLE_DEVICES=all image", ""),
        ("podman run --device nvidia.com/gpu=0 image", ""),
        ("docker run --device /dev/nvidia0 image", ""),
        ("docker compose run with", ""),
        ("docker compose run all", ""),
        ("docker compose run runtime", ""),
        ("docker compose run without", "'gpus: all' in the service without"),
    ],
)
def test_who_is_given_no_gpu(words: str, adds: str) -> None:
    assert gpu_to_add(line(words)) == adds


def test_a_host_without_a_driver_has_none_to_give(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(container, "_DRIVER", tmp_path / "absent")
    assert missing_gpu(line("docker run image")) == ""
    monkeypatch.setattr(container, "_DRIVER", tmp_path)
    assert missing_gpu(line("docker run image")).endswith("add --gpus all")
    assert missing_gpu(line("docker run --gpus all image")) == ""


@each_row(
    ("code", "logged", "says"),
    [
        (127, "sh: 1: exec: python3: not found", "image has no python3; use an image with vLLM"),
        (127, 'exec: "vllm": executable file not found in $PATH', "image has no vllm;"),
        (127, "", "image has no such program;"),
        (1, "ModuleNotFoundError: No module named 'vllm'", "the Python of image has no vLLM"),
        (1, "ModuleNotFoundError: No module named 'msgspec'", "the Python of image has no vLLM"),
        (None, "RuntimeError: Failed to infer device type", "no GPU: add --gpus all"),
        (1, "RuntimeError: Found no NVIDIA driver on your system", "no GPU: add --gpus all"),
    ],
)
def test_why_a_container_failed(code: int | None, logged: str, says: str) -> None:
    assert says in why_it_failed(line("docker run image vllm serve m"), code, logged)


def test_what_is_no_container_s_fault() -> None:
    run = line("docker run --gpus all image vllm serve m")
    for code, logged in ((1, "ValueError: x"), (None, "Failed to infer device type"), (0, "")):
        assert why_it_failed(run, code, logged) == ""


def test_a_vllm_that_cannot_be_recorded() -> None:
    for image in ("nvcr.io/nvidia/vllm:25.09-py3", "vllm/vllm-openai:v0.11.0"):
        with refusal("and spark-prof takes 0.24 to 0.33; use another image, such as nvcr.io"):
            refuse_image(image)
    for image in ("nvcr.io/nvidia/vllm:26.10-py3", "vllm/vllm-openai:latest", "mine"):
        refuse_image(image)


@each_row(
    ("option", "says"),
    [
        ("--linear-backend=marlin", ""),
        ("--moe-backend=b12x", "vllm/vllm-openai:v0.26.0 has vLLM 0.26.0, which takes no --moe-b"),
        ("--moe-backend marlin", ""),
        ("--no-such-option", "which has no --no-such-option"),
        ("--max-num-seqs 4", ""),
        ("--compilation-config.cudagraph_mode=FULL", ""),
    ],
)
def test_options_that_an_image_does_not_take(option: str, says: str) -> None:
    words = option.split()
    refuse_options("mine", words)
    refuse_options("nvcr.io/nvidia/vllm:26.08-py3", words)
    if says:
        with refusal(says):
            refuse_options("vllm/vllm-openai:v0.26.0", words)
    else:
        refuse_options("vllm/vllm-openai:v0.26.0", words)


def test_before_a_recording(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(container, "_DRIVER", tmp_path)

    def note(words: str) -> str:
        return _container_note(Command(tuple(shlex.split(words)), "container"))

    assert "add --service-ports" in note("docker compose run with")
    assert note("docker compose run --service-ports with") == ""
    assert "add --gpus all" in note("docker run image")
    with refusal("has vLLM 0.11.1"):
        note("docker run nvcr.io/nvidia/vllm:26.01-py3 vllm serve m")

"""The engine in a command line: its Python, its parser and its arguments."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from spark_prof.ab.command import engine_command
from spark_prof.errors import CommandError


@pytest.fixture
def vllm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A vllm start script whose Python is another one."""
    python = tmp_path / "bin" / "python3.12"
    python.parent.mkdir()
    python.symlink_to(sys.executable)
    script = python.with_name("vllm")
    script.write_text(f"#!{python}\nimport vllm\n")
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{python.parent}:/usr/bin:/bin")
    return script


@pytest.mark.parametrize("model", ["openai/gpt-oss-20b", "Qwen/Qwen3-30B-A3B"])
def test_a_name_of_the_hub_is_a_model(model: str) -> None:
    command = engine_command([model, "--max-model-len", "1024"])
    assert (command.form, command.python, command.model) == ("model", sys.executable, model)
    assert command.arguments == (model, "--max-model-len", "1024")


@pytest.mark.parametrize(
    ("words", "form", "arguments"),
    [
        ("vllm serve m --port 1", "serve", ("m", "--port", "1")),
        ("vllm bench latency --model m", "latency", ("--model", "m")),
        ("vllm bench throughput --model=m", "throughput", ("--model=m",)),
        ("env A=1 nice -n 5 vllm serve m", "serve", ("m",)),
    ],
)
def test_commands_of_vllm(vllm: Path, words: str, form: str, arguments: tuple[str, ...]) -> None:
    command = engine_command(words.split())
    assert (command.form, command.arguments, command.model) == (form, arguments, "m")
    assert command.python == str(vllm.with_name("python3.12"))
    before = words.split()[: words.split().index("vllm")]
    assert list(command.prefix) == before


def test_a_long_path_stands_in_the_second_line(vllm: Path) -> None:
    python = vllm.with_name("python3.12")
    vllm.write_text(f"#!/bin/sh\n'''exec' \"{python}\" \"$0\" \"$@\"\n' '''\nimport vllm\n")
    assert engine_command(["vllm", "serve", "m"]).python == str(python)


def test_the_server_as_a_module() -> None:
    words = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", "m"]
    command = engine_command(words)
    assert (command.python, command.form, command.model) == (sys.executable, "serve", "m")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "no model and no command"),
        (["vllm", "bench", "startup"], "is no engine to compare"),
        (["vllm", "run-batch", "-i", "x"], "is no engine to compare"),
        (["vllm", "chat"], "starts no engine"),
        (["bash", "-c", "x"], "is not known to start one engine"),
        (["docker", "run", "image", "bash"], "runs a script of bash"),
        (["nothing-here"], "is not found on PATH"),
        (["./nomodel", "--max-model-len", "8"], "./nomodel is neither a model's folder nor"),
        (["vllm", "serve", "./nomodel"], "./nomodel is no model's folder"),
        (["/no/such/model"], "/no/such/model is neither a model's folder nor"),
    ],
)
def test_other_commands_are_refused(vllm: Path, words: list[str], says: str) -> None:
    docker = vllm.with_name("docker")
    docker.write_text("#!/bin/sh\n")
    docker.chmod(0o755)
    with pytest.raises(CommandError, match=re.escape(says)):
        engine_command(words)

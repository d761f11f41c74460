"""A served model: recorded from its start, then for a window while it runs, ended by Ctrl-C."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from spark_prof.traces.assemble import salvage
from spark_prof.traces.chunk_files import being_recorded
from spark_prof.traces.chunks import pieces_folder
from tests.engine.conftest import ROOT, SPARK_PROF, computing_without_component, report_of

STEPS, TOKENS = 12, 16


@dataclass
class Server:
    """A server under `spark-prof record`, with what it has printed so far."""

    process: subprocess.Popen[bytes]
    port: int
    bundle: Path
    log: Path

    def complete(self, tokens: int = TOKENS) -> Any:
        body = {"model": "tiny", "prompt": [[5, 6, 7, 8, 9]], "max_tokens": tokens,
                "ignore_eos": True, "temperature": 0, "return_token_ids": True}  # fmt: skip
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}/v1/completions",
            data=json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)

    def wait_for(self, text: str, seconds: float = 240) -> None:
        end = time.monotonic() + seconds
        while text not in self.log.read_text(errors="replace"):
            assert self.process.poll() is None, self.log.read_text(errors="replace")[-4000:]
            assert time.monotonic() < end, f"{text!r} did not come"
            time.sleep(0.2)


@pytest.fixture(scope="module")
def server(
    models: dict[str, Path], environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("served")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    serve = [
        sys.executable, "-m", "vllm.entrypoints.openai.api_server",
        "--model", str(models["tiny-moe"]),
        "--load-format", "dummy", "--skip-tokenizer-init", "--enforce-eager",
        "--max-model-len", "256", "--max-num-seqs", "4", "--gpu-memory-utilization", "0.3",
        "--host", "127.0.0.1", "--port", str(port), "--served-model-name", "tiny",
    ]  # fmt: skip
    options = ["record", "-o", str(folder / "bundle"), "--steps", str(STEPS), "--"]
    log = folder / "log"
    with open(log, "wb") as file:
        process = subprocess.Popen(
            [*SPARK_PROF, *options, *serve], env=environment, cwd=ROOT, stdout=file, stderr=file
        )
    found = Server(process, port, folder / "bundle", log)
    try:
        found.wait_for("Application startup complete")
        yield found
    finally:
        if process.poll() is None:
            process.terminate()  # which ends the server too; SIGKILL would leave it behind
            process.wait(60)


def attach(server: Server, environment: dict[str, str], bundle: Path, *options: str) -> Any:
    """Attaches, and returns when the server has begun to record."""
    argv = ["record", "--attach", f"http://127.0.0.1:{server.port}", "-o", str(bundle), *options]
    attached = subprocess.Popen([*SPARK_PROF, *argv], env=environment, stderr=subprocess.PIPE)
    assert attached.stderr is not None
    while b"send the server requests" not in attached.stderr.readline():
        assert attached.poll() is None
    time.sleep(1.5)  # the server looks for requests to record twice a second
    return attached


def test_a_recorder_that_is_killed_leaves_the_server_free(
    server: Server, environment: dict[str, str]
) -> None:
    server.complete()
    server.wait_for("the command goes on")
    folder = server.bundle.with_name("killed")
    killed = attach(server, environment, folder, "--steps", "0")
    first = server.complete()
    killed.kill()
    killed.wait()
    end = time.monotonic() + 60
    while being_recorded(pieces_folder(folder)):
        assert time.monotonic() < end
        time.sleep(0.1)
    kept = salvage(folder)
    assert kept.bundle.meta.state == "salvaged"
    assert len(kept.bundle.frame("steps", 0)) == TOKENS
    assert not kept.missing
    following = attach(server, environment, server.bundle.with_name("next"), "--steps", "5")
    again = server.complete()
    assert following.wait(60) == 0
    assert again["choices"][0]["text"] == first["choices"][0]["text"]


def test_a_served_model_recorded_twice(server: Server, environment: dict[str, str]) -> None:
    first = server.complete()
    server.wait_for("the command goes on")
    report = report_of(server.bundle)
    assert report["steps"]["count"] == STEPS
    assert report["steps"]["tokens"] == STEPS
    assert not computing_without_component(server.bundle)

    second = server.bundle.with_name("attached")
    attached = attach(server, environment, second, "--steps", "5", "--decode-only")
    again = server.complete()
    assert attached.wait(60) == 0
    report = report_of(second)
    assert report["steps"]["count"] == report["steps"]["decode"] == 5
    assert {row["layer"] for row in report["layers"]} >= {0, 1, 2}

    assert again["choices"][0]["text"] == first["choices"][0]["text"]
    assert again["usage"]["completion_tokens"] == TOKENS
    server.process.send_signal(signal.SIGINT)
    assert server.process.wait(150) == 0

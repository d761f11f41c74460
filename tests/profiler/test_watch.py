"""A recording seen from outside, through the files of its processes."""

from __future__ import annotations

import json
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from spark_prof.profiler.watch import Watcher
from spark_prof.traces.chunks import REFUSED_FILE
from tests.rows import each_row


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def watcher(tmp_path: Path, said: list[str]) -> Watcher:
    return Watcher(tmp_path, 100, said.append)


def rank(
    folder: Path, number: int, state: str = "RECORDING", recorded: int = 0, **more: Any
) -> None:
    value = {"state": state, "recorded": recorded, "finished": False} | more
    (folder / f"rank{number}.progress.json").write_text(json.dumps(value))


@each_row(
    ("parallel", "backend", "finished", "done"),
    [
        ({}, "", [True], True),
        ({}, "", [False], False),
        ({"tensor": 1, "pipeline": 1, "data": 1}, "mp", [True], True),
        ({"tensor": 2, "pipeline": 1, "data": 1}, "mp", [True], False),
        ({"tensor": 2, "pipeline": 1, "data": 1}, "mp", [True, False], False),
        ({"tensor": 2, "pipeline": 1, "data": 1}, "mp", [True, True], True),
        ({"tensor": 2, "pipeline": 2, "data": 1}, "mp", [True, True], False),
        # Ranks that Ray started may write elsewhere.
        ({"tensor": 4}, "ray", [True], True),
        ({"tensor": 4}, "<class 'x.RayExecutor'>", [True], True),
        ({"tensor": 4}, "ray", [False], False),
        ({"tensor": 4}, "ray", [True, False], False),
    ],
)
def test_done_when_every_rank_has_finished(
    tmp_path: Path, parallel: dict[str, int], backend: str, finished: list[bool], done: bool
) -> None:
    config = {"parallel_config": {"distributed_executor_backend": backend}}
    value = {"parallel": parallel, "engine_config": config}
    for number, ended in enumerate(finished):
        rank(tmp_path, number, finished=ended)
        (tmp_path / f"rank{number}.facts.json").write_text(json.dumps(value))
    assert Watcher(tmp_path, 100, print).done() is done


def test_damaged_files_say_nothing(watcher: Watcher) -> None:
    for name in ("rank0.progress.json", "rank0.facts.json", REFUSED_FILE):
        (watcher.pieces / name).write_text("[")
    assert not watcher.done()
    watcher.check()


def test_progress_is_said_when_it_changes(watcher: Watcher, said: list[str]) -> None:
    watcher.show()
    watcher.show()
    rank(watcher.pieces, 0, "WAITING")
    watcher.show()
    rank(watcher.pieces, 0, recorded=5)
    watcher.show()
    watcher.show()
    assert said == [
        "waiting for the command to start vLLM",
        "waiting for the first step: send a server requests once it is up",
        "recording step 5 of 100",
    ]


def test_a_server_that_answers_is_told_once(watcher: Watcher, said: list[str]) -> None:
    class Health(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if self.path == "/health" else 404)
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    rank(watcher.pieces, 0, "WAITING")
    with HTTPServer(("127.0.0.1", 0), Health) as server:
        watcher.port = server.server_port
        Thread(target=server.handle_request, daemon=True).start()
        watcher.show()
    watcher.show()
    assert said == [f"the server is up: send it requests (port {watcher.port})"]


def test_the_state_of_the_slowest_rank_is_said(watcher: Watcher, said: list[str]) -> None:
    for states in (("CLOSED", "RECORDING"), ("RECORDING", "WARMING")):
        for number, state in enumerate(states):
            rank(watcher.pieces, number, state, 5)
        watcher.show()
    assert said == ["recording step 5 of 100", "letting warm-up steps pass"]


def test_waiting_for_the_scheduler_ends_when_it_has_finished(
    watcher: Watcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[bool] = []
    monkeypatch.setattr(Watcher, "wait", lambda _, finished, seconds: ended.append(finished()))
    watcher.wait_for_engine()
    (watcher.pieces / "rank0.facts.json").write_text("{}")
    (watcher.pieces / "engine0.facts.json").write_text("{}")
    watcher.wait_for_engine()
    (watcher.pieces / "engine0.progress.json").write_text('{"finished": true}')
    watcher.wait_for_engine()
    assert ended == [True, False, True]

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


def facts(folder: Path, number: int, **parallel: int) -> None:
    (folder / f"rank{number}.facts.json").write_text(json.dumps({"parallel": parallel}))


@pytest.mark.parametrize(
    ("parallel", "finished", "done"),
    [
        ({}, [True], True),
        ({}, [False], False),
        ({"tensor": 1, "pipeline": 1, "data": 1}, [True], True),
        ({"tensor": 2, "pipeline": 1, "data": 1}, [True], False),
        ({"tensor": 2, "pipeline": 1, "data": 1}, [True, False], False),
        ({"tensor": 2, "pipeline": 1, "data": 1}, [True, True], True),
        ({"tensor": 2, "pipeline": 2, "data": 1}, [True, True], False),
    ],
)
def test_done_when_every_rank_has_finished(
    watcher: Watcher, parallel: dict[str, int], finished: list[bool], done: bool
) -> None:
    for number, ended in enumerate(finished):
        rank(watcher.pieces, number, finished=ended)
        facts(watcher.pieces, number, **parallel)
    assert watcher.done() is done


@pytest.mark.parametrize(
    ("backend", "finished", "done"),
    [("ray", [True], True), ("<class 'x.RayExecutor'>", [True], True), ("ray", [False], False),
     ("ray", [True, False], False), ("mp", [True], False)],
)  # fmt: skip
def test_ranks_that_ray_started_may_write_elsewhere(
    watcher: Watcher, backend: str, finished: list[bool], done: bool
) -> None:
    config = {"parallel_config": {"distributed_executor_backend": backend}}
    value = {"parallel": {"tensor": 4}, "engine_config": config}
    for number, ended in enumerate(finished):
        rank(watcher.pieces, number, finished=ended)
        (watcher.pieces / f"rank{number}.facts.json").write_text(json.dumps(value))
    assert watcher.done() is done


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


@pytest.mark.parametrize(
    ("states", "line"),
    [
        (("CLOSED", "RECORDING"), "recording step 5 of 100"),
        (("RECORDING", "WARMING"), "letting warm-up steps pass"),
    ],
)
def test_the_state_of_the_slowest_rank_is_said(
    watcher: Watcher, said: list[str], states: tuple[str, ...], line: str
) -> None:
    for number, state in enumerate(states):
        rank(watcher.pieces, number, state, 5)
    watcher.show()
    assert said == [line]


def test_waiting_for_the_scheduler_ends_when_it_has_finished(
    watcher: Watcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[bool] = []
    monkeypatch.setattr(Watcher, "wait", lambda _, finished, seconds: ended.append(finished()))
    watcher.wait_for_engine()
    facts(watcher.pieces, 0)
    (watcher.pieces / "engine0.facts.json").write_text("{}")
    watcher.wait_for_engine()
    (watcher.pieces / "engine0.progress.json").write_text('{"finished": true}')
    watcher.wait_for_engine()
    assert ended == [True, False, True]

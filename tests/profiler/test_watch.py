"""A recording seen from outside, through the files of its processes."""

from __future__ import annotations

import json
import shutil
import socket
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import Any

import pytest

from spark_prof.profiler.watch import _PIDFD_GET_INFO, LEAST_DISK, Watcher
from spark_prof.traces.chunks import REFUSED_FILE, StepCounter, append_log
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
    assert Watcher(tmp_path, 100, print).all_finished() is done


@each_row(("nodes", "done"), [("2", True), ("1", False), (2, True), (1, False)])
def test_a_node_of_several_waits_for_its_own_ranks(
    tmp_path: Path, nodes: object, done: bool
) -> None:
    config = {"parallel_config": {"distributed_executor_backend": "mp", "nnodes": nodes}}
    rank(tmp_path, 1, finished=True)
    value = {"parallel": {"tensor": 2}, "engine_config": config}
    (tmp_path / "rank1.facts.json").write_text(json.dumps(value))
    assert Watcher(tmp_path, 100, print).all_finished() is done


def test_damaged_files_say_nothing(watcher: Watcher) -> None:
    for name in ("rank0.progress.json", "rank0.facts.json", REFUSED_FILE):
        (watcher.pieces / name).write_text("[")
    assert not watcher.all_finished()
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
        "waiting for the first step",
        "recording step 5 of 100",
    ]


def test_of_a_server_that_is_attached_to_nothing_is_said_of_a_command(
    watcher: Watcher, said: list[str]
) -> None:
    watcher.attached = True
    watcher.show()
    rank(watcher.pieces, 0, "WAITING")
    watcher.show()
    assert said == [
        "waiting for the server to begin",
        "waiting for the first step: send the server requests",
    ]


def test_of_a_server_that_does_not_answer_yet_it_says_so(watcher: Watcher, said: list[str]) -> None:
    with socket.socket() as taken:  # nobody listens there
        taken.bind(("127.0.0.1", 0))
        watcher.port = taken.getsockname()[1]
        rank(watcher.pieces, 0, "WAITING")
        watcher.show()
        watcher.show()
    assert said == ["the server is not up yet"]


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


def count(folder: Path, name: str, recorded: int) -> StepCounter:
    counter = StepCounter()
    counter.open(folder, name, "")
    counter.end(recorded)
    return counter


def test_on_a_full_disk_a_rank_is_done_by_its_counts(tmp_path: Path, watcher: Watcher) -> None:
    rank(tmp_path, 0, recorded=3)
    counter = count(tmp_path, "rank0", 7)
    assert not watcher.all_finished()
    assert watcher.trouble() == ""
    counter.fail()
    counter.finish()
    assert watcher.all_finished()
    assert watcher.recorded() == 7
    assert watcher.trouble().startswith("the recording of rank0 failed")


def test_a_rank_that_could_write_nothing_is_done_by_its_counts(watcher: Watcher) -> None:
    counter = count(watcher.pieces, "rank0", 2)
    assert not watcher.ranks()
    counter.finish()
    assert watcher.all_finished()
    watcher.show()


def test_why_a_recording_failed_is_told_as_far_as_it_was_logged(watcher: Watcher) -> None:
    counter = count(watcher.pieces, "rank0", 2)
    counter.fail()
    append_log(watcher.pieces, "rank0", 1, "hook flush failed and is off: OSError: quota")
    assert "quota" in watcher.trouble()


def test_a_disk_without_room_is_told_before_anything_fails(
    watcher: Watcher, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=LEAST_DISK - 1))
    rank(watcher.pieces, 0, recorded=3)
    assert watcher.trouble() == f"only 31 MiB are free for {watcher.pieces.parent}"
    watcher.show()
    assert said == [watcher.trouble()]


def test_replicas_that_know_of_themselves_alone_are_all_waited_for(watcher: Watcher) -> None:
    for number in range(2):
        value = {"parallel": {"tensor": 1, "pipeline": 1, "data": 1}}
        (watcher.pieces / f"rank{number}.facts.json").write_text(json.dumps(value))
    rank(watcher.pieces, 0, finished=True)
    assert not watcher.all_finished()
    rank(watcher.pieces, 1, finished=True)
    assert watcher.all_finished()


def test_what_ended_a_recording_that_nobody_ended(watcher: Watcher) -> None:
    rank(watcher.pieces, 0, ended="")
    assert watcher.cut_short() == ""
    rank(watcher.pieces, 1, ended="its recorder ended without a word")
    assert watcher.cut_short() == "its recorder ended without a word"


def test_a_stop_needs_no_room(watcher: Watcher, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "touch", full)
    watcher.stop()


def test_how_a_process_ended_is_asked_by_the_number_of_linux() -> None:
    # _IOWR(PIDFS_IOCTL_MAGIC, 11, struct pidfd_info) of linux/pidfd.h: both ways, 64 bytes.
    assert _PIDFD_GET_INFO == (2 | 1) << 30 | 64 << 16 | 0xFF << 8 | 11

"""Asking a running server to record: what is refused, and what a request is."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from threading import Thread

import psutil
import pytest

from spark_prof.errors import CommandError
from spark_prof.profiler import attach as module
from spark_prof.profiler.attach import (
    attach,
    recordable_among,
    recordable_processes,
    registered,
    request_recording,
    stop_recording,
)
from spark_prof.profiler.control import request_name, start_of, stop_name
from spark_prof.profiler.launcher import prepare_bundle
from spark_prof.profiler.settings import Settings, registry_folder
from spark_prof.profiler.watch import Watcher
from spark_prof.traces.chunks import pieces_folder


@pytest.fixture(autouse=True)
def _own_registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))


@pytest.fixture
def listening() -> Iterator[int]:
    """A port on which this process listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def refused(url: str, bundle: Path) -> str:
    with pytest.raises(CommandError) as caught:
        attach(url, Settings(str(bundle)), lambda _: None)
    assert caught.value.exit_code == 2
    assert "\n" not in str(caught.value)
    assert not bundle.exists()
    return str(caught.value)


def test_an_address_that_is_none_of_this_host(tmp_path: Path) -> None:
    for url in ("http://10.1.2.3:8000", "http://example.com", "example.com:8000", "http://",
                "http://0.1.2.3:1"):  # fmt: skip
        assert "not this host" in refused(url, tmp_path / "b")
    for port in ("localhost:99999", "localhost:x", "localhost:-1", "[::1"):
        assert "no address" in refused(f"http://{port}", tmp_path / "b")


def test_nobody_listens(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        free = server.getsockname()[1]
    for address in ("http://127.0.0.1:{}", "localhost:{}", "http://[::1]:{}/v1"):
        assert f"listens on port {free}" in refused(address.format(free), tmp_path / "b")


def test_a_server_without_the_plugin(tmp_path: Path, listening: int) -> None:
    message = refused(f"http://127.0.0.1:{listening}", tmp_path / "b")
    assert f"process {os.getpid()}" in message
    assert "is spark-prof installed in its environment" in message


def test_a_server_with_the_plugin_is_found(listening: int) -> None:
    value = {"start": start_of(os.getpid())}
    (registry_folder() / f"{os.getpid()}.json").write_text(json.dumps(value))
    assert [process.pid for process in recordable_processes(listening)] == [os.getpid()]


def test_engines_beside_an_api_server_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM with several API servers: their parent has the socket, and the engines are its."""
    with socket.create_server(("127.0.0.1", 0)) as shared:
        port = shared.getsockname()[1]
        shared.set_inheritable(True)
        argv = [sys.executable, "-c", "input()"]
        server = subprocess.Popen(argv, stdin=subprocess.PIPE, pass_fds=[shared.fileno()])
        engine = subprocess.Popen(argv, stdin=subprocess.PIPE)
        try:
            # Of the two that have the socket psutil names one, here the child.
            end = time.monotonic() + 60
            while not psutil.Process(server.pid).net_connections("tcp"):
                assert time.monotonic() < end
                time.sleep(0.05)
            real = psutil.net_connections("tcp")
            mine = [
                each._replace(pid=server.pid) if each.laddr[1:2] == (port,) else each
                for each in real
            ]
            monkeypatch.setattr(psutil, "net_connections", lambda kind: mine)
            value = {"start": start_of(engine.pid)}
            (registry_folder() / f"{engine.pid}.json").write_text(json.dumps(value))
            assert [process.pid for process in recordable_processes(port)] == [engine.pid]
        finally:
            for each in (server, engine):
                each.communicate(b"\n")


def test_a_file_of_an_earlier_process_does_not_count() -> None:
    for text in ("", "{", "[]", "null", "{}", '{"start": "1"}'):
        (registry_folder() / f"{os.getpid()}.json").write_text(text)
        assert recordable_among(psutil.Process()) == []


def test_a_request_is_the_settings(tmp_path: Path) -> None:
    settings = Settings(str(tmp_path / "b"), steps=3)
    request_recording(registered([psutil.Process()]), settings)
    text = (registry_folder() / request_name(os.getpid())).read_text()
    assert Settings.from_json(text) == settings
    assert [path.name for path in registry_folder().iterdir()] == [request_name(os.getpid())]


@pytest.mark.parametrize("kind", ["open", "link"])
def test_somebody_else_s_registry_is_not_used(tmp_path: Path, kind: str) -> None:
    folder = Path(tempfile.gettempdir()) / f"spark-prof-{os.getuid()}"
    if kind == "open":
        folder.mkdir()
        folder.chmod(0o777)
    else:
        (tmp_path / "elsewhere").mkdir(mode=0o700)
        folder.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(PermissionError):
        registry_folder()


def test_somebody_else_s_registry_is_one_line(tmp_path: Path, listening: int) -> None:
    (Path(tempfile.gettempdir()) / f"spark-prof-{os.getuid()}").mkdir(mode=0o755)
    refused(f"http://127.0.0.1:{listening}", tmp_path / "b")


def told(recording: str) -> None:
    value = {"start": start_of(os.getpid()), "recording": recording}
    (registry_folder() / f"{os.getpid()}.json").write_text(json.dumps(value))


def test_a_recording_is_ended_from_elsewhere(tmp_path: Path, listening: int) -> None:
    told(str(tmp_path / "b"))
    asked = registry_folder() / stop_name(os.getpid())

    def engine() -> None:
        while not asked.exists():
            pass
        told("")

    thread = Thread(target=engine)
    thread.start()
    said: list[str] = []
    stop_recording(f"http://127.0.0.1:{listening}", said.append)
    thread.join()
    assert said == [f"ended the recording into {tmp_path / 'b'}"]


@pytest.mark.parametrize("older", [False, True])
def test_a_server_that_is_not_recorded_has_nothing_to_end(listening: int, older: bool) -> None:
    told("")
    if older:
        value = {"start": start_of(os.getpid())}
        (registry_folder() / f"{os.getpid()}.json").write_text(json.dumps(value))
    with pytest.raises(CommandError, match="is not being recorded") as caught:
        stop_recording(str(listening), lambda _: None)
    assert caught.value.exit_code == 2
    assert not (registry_folder() / stop_name(os.getpid())).exists()


@pytest.mark.parametrize("steps", [False, True])
def test_what_stands_in_the_way_ends_the_recording_and_is_told(
    steps: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, said, states = tmp_path / "b", list[str](), list[str]()
    claim = prepare_bundle(folder, ["vllm"], Settings(str(folder)))
    watcher = Watcher(pieces_folder(folder), 5, said.append, attached=True)
    monkeypatch.setattr(watcher, "trouble", lambda: "only 3 MiB are free")
    monkeypatch.setattr(module, "make_bundle", lambda *named: states.append(named[-1]))
    if steps:
        (watcher.pieces / "rank0.0.steps.npy").touch()
    with pytest.raises(CommandError) as caught:
        module._follow([psutil.Process()], watcher, claim)
    claim.release()
    kept = f"; the steps until then are in {folder}, see them with: spark-prof report {folder}"
    assert str(caught.value) == "only 3 MiB are free" + kept * steps
    early = "the recording was ended early: only 3 MiB are free"
    assert (states, early in said) == ((["interrupted"], True) if steps else ([], False))

"""Records a vLLM server that is already running, for a window.

The server needs nothing but spark-prof installed where it runs: the dormant plugin waits for a
request file. Server and recorder are the same user on the same host (or in the same container).
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from shlex import quote
from time import monotonic, sleep
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import psutil

from spark_prof.errors import CommandError
from spark_prof.files import write_whole
from spark_prof.profiler.control import request_name, start_of, stop_name
from spark_prof.profiler.interrupts import PATIENT, patience_of, terminated_as_interrupt
from spark_prof.profiler.launcher import (
    has_steps,
    make_bundle,
    prepare_bundle,
    remove_empty,
    vanished_folder,
)
from spark_prof.profiler.settings import Settings, registry_folder
from spark_prof.profiler.watch import Screen, Watcher
from spark_prof.profiler.why_nothing import unwritten
from spark_prof.traces.bundle import Bundle
from spark_prof.traces.chunk_files import json_object
from spark_prof.traces.claim import Claim


def attach(
    url: str, settings: Settings, say: Callable[[str], None], screen: Screen | None = None
) -> Bundle:
    """Records the server that listens at a URL, such as http://127.0.0.1:8000."""
    processes = recordable_processes(_port_of(url))
    with (
        terminated_as_interrupt(),
        requested(registered(processes), settings, ["--attach", url], say) as (watcher, claim),
    ):
        watcher.screen = screen
        say(f"asked {len(processes)} processes to record; send the server requests")
        return _follow(processes, watcher, claim)


def stop_recording(url: str, say: Callable[[str], None]) -> None:
    """Ends the recording of the server that listens at a URL, whoever began it."""
    registry = registry_folder()
    active = {
        process: folder
        for process in recordable_processes(_port_of(url))
        if (folder := _recorded_into(registry, process))
    }
    if not active:
        raise CommandError(f"the server at {url} is not being recorded")
    for process in active:
        write_whole(registry / stop_name(process.pid), "")
    end = monotonic() + PATIENT.flush_s
    while left := [
        process for process in active if _runs(process) and _recorded_into(registry, process)
    ]:
        if monotonic() > end:
            numbers = ", ".join(str(process.pid) for process in left)
            raise CommandError(
                f"asked, but process {numbers} still records: it ends with its next step, "
                "send the server a request"
            )
        sleep(0.1)
    for folder in sorted(set(active.values())):
        say(f"ended the recording into {folder}")


def _recorded_into(registry: Path, process: psutil.Process) -> str:
    """The folder that a process says it is recorded into; empty where it is not."""
    return str(json_object(registry / f"{process.pid}.json").get("recording") or "")


class Registered(NamedTuple):
    """Processes that said that they can be recorded."""

    registry: Path  # the folder in which they said so, and look for requests
    pids: tuple[int, ...]  # as they know themselves: in a container others than on this host


def registered(processes: Sequence[psutil.Process]) -> Registered:
    """Processes of this host that `recordable_among` found."""
    return Registered(registry_folder(), tuple(process.pid for process in processes))


def registered_in(registry: Path) -> Registered:
    """Every process that said so in a folder that only one engine has."""
    names = (path.stem for path in registry.glob("*.json"))
    return Registered(registry, tuple(sorted(int(name) for name in names if name.isdecimal())))


def request_recording(processes: Registered, settings: Settings) -> None:
    """Asks processes to record; they begin within a second."""
    for pid in processes.pids:
        path = processes.registry / request_name(pid)
        write_whole(path, settings.to_json())
        path.chmod(0o644)  # a container's user reads it; the folder keeps all others out


@contextmanager
def requested(
    processes: Registered,
    settings: Settings,
    command: Sequence[str],
    say: Callable[[str], None],
) -> Iterator[tuple[Watcher, Claim]]:
    """Asks processes to record, for as long as somebody watches; a folder without steps goes."""
    settings = replace(settings, run=settings.run or secrets.token_hex(8))
    with prepare_bundle(settings.folder, command, settings) as claim:
        try:
            request_recording(processes, settings)
            yield Watcher(settings.pieces, settings.watched_steps, say, attached=True), claim
        finally:
            remove_empty(settings.folder, claim)


def _follow(processes: Sequence[psutil.Process], watcher: Watcher, claim: Claim) -> Bundle:
    """Waits for the window and makes the bundle; Ctrl-C ends the window."""
    state = "complete"
    patience = PATIENT
    trouble = ""
    try:
        while not watcher.all_finished():
            if vanished := vanished_folder(claim):
                raise vanished
            watcher.check()
            if watcher.broken() or not any(map(_runs, processes)):
                state = "interrupted"
                break
            if trouble := watcher.trouble():
                break
            watcher.show()
            watcher.wait(watcher.all_finished, 0.5)
        trouble = trouble or watcher.trouble()
        if trouble:
            watcher.say(f"{trouble}: ending the recording and keeping what there is")
    except KeyboardInterrupt as error:
        # Without a number of steps that is how it was meant to end.
        state = "interrupted" if watcher.steps else "complete"
        patience = patience_of(error)
        watcher.say("ending the recording and keeping what there is")
    if vanished := vanished_folder(claim):
        raise vanished
    watcher.stop()
    watcher.wait(
        lambda: watcher.all_finished() or (watcher.broken() and watcher.settled()),
        patience.flush_s if watcher.recorded() else 2.0,
    )
    watcher.wait_for_engine(patience.engine_s)
    if not has_steps(watcher.pieces) and (lost := unwritten(watcher) or trouble):
        raise CommandError(lost)
    if (why := watcher.cut_short()) or trouble:
        state = "interrupted"
        watcher.say(f"the recording was ended early: {why or trouble}")
    bundle = make_bundle(claim.folder, watcher, watcher.say, state)
    if trouble:
        raise CommandError(
            f"{trouble}; the steps until then are in {claim.folder}, see them with: "
            f"spark-prof report {quote(str(claim.folder))}"
        )
    return bundle


def _runs(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def recordable_processes(port: int) -> list[psutil.Process]:
    """The vLLM processes below whatever listens on that port that spark-prof can record.

    Several API servers share one socket with the process that started them and the engines.
    """
    servers = _listeners(port)
    if not servers:
        raise CommandError(
            f"nothing listens on port {port} that this user may look at: start vllm serve there, "
            "or give the URL where it listens"
        )
    processes = {process.pid: process for server in servers for process in recordable_among(server)}
    if not processes:
        raise CommandError(
            f"the server on port {port} (process {servers[0].pid}) cannot be recorded: is "
            "spark-prof installed in its environment (for a container, in the image, and this run "
            "inside it), is its vLLM 0.24 to 0.33, and does its VLLM_PLUGINS, if set, name "
            "spark_prof?"
        )
    return list(processes.values())


def recordable_among(parent: psutil.Process) -> list[psutil.Process]:
    """The process and those below it that have said that they run vLLM and can be recorded."""
    try:
        registry = registry_folder()
    except OSError as error:
        raise CommandError(f"cannot look for vLLM processes: {error}") from error
    family = [parent, *parent.children(recursive=True)]
    return [process for process in family if _is_registered(registry, process)]


def _is_registered(registry: Path, process: psutil.Process) -> bool:
    """Whether the process said so itself; an old file of an earlier process does not count."""
    path = registry / f"{process.pid}.json"
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
        return bool(value.get("start") == start_of(process.pid))
    except (OSError, ValueError, AttributeError):
        return False


def _listeners(port: int) -> list[psutil.Process]:
    """The processes that listen there; of a shared socket the one that it was inherited from too.

    Of those that share one `psutil.net_connections` names any.
    """
    pids = {
        socket.pid
        for socket in psutil.net_connections("tcp")
        if _listens(socket, port) and socket.pid
    }
    servers = []
    for pid in sorted(pids):
        with suppress(psutil.Error):
            server = psutil.Process(pid)
            servers += [
                server,
                *(parent for parent in server.parents() if _has_socket(parent, port)),
            ]
    return servers


def _has_socket(process: psutil.Process, port: int) -> bool:
    with suppress(psutil.Error):
        return any(_listens(connection, port) for connection in process.net_connections("tcp"))
    return False


def _listens(connection: Any, port: int) -> bool:
    return bool(connection.status == psutil.CONN_LISTEN and connection.laddr[1:2] == (port,))


def _port_of(url: str) -> int:
    try:
        url = f"127.0.0.1:{url.removeprefix(':')}" if url.removeprefix(":").isdigit() else url
        parts = urlsplit(url if "//" in url else f"//{url}")
        port = parts.port
    except ValueError as error:
        raise CommandError(f"{url} is no address of a server: {error}") from error
    if parts.hostname not in ("127.0.0.1", "localhost", "::1", "0.0.0.0"):
        raise CommandError(
            f"{parts.hostname or url} is not this host; run spark-prof record --attach where the "
            "server runs"
        )
    return port or 8000

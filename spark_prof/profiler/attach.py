"""Records a vLLM server that is already running, for a window.

The server needs nothing but spark-prof installed where it runs: the dormant plugin waits for a
request file. Server and recorder are the same user on the same host (or in the same container).
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

import psutil

from spark_prof.errors import CommandError
from spark_prof.files import write_whole
from spark_prof.profiler.control import request_name, start_of
from spark_prof.profiler.launcher import (
    PATIENT,
    has_steps,
    make_bundle,
    patience_of,
    prepare_bundle,
    remove_empty,
    terminated_as_interrupt,
    unwritten,
    vanished_folder,
)
from spark_prof.profiler.settings import Settings, registry_folder
from spark_prof.profiler.watch import Watcher
from spark_prof.traces.bundle import Bundle
from spark_prof.traces.claim import Claim


def attach(url: str, settings: Settings, say: Callable[[str], None]) -> Bundle:
    """Records the server that listens at a URL, such as http://127.0.0.1:8000."""
    processes = recordable_processes(_port_of(url))
    with (
        terminated_as_interrupt(),
        requested(processes, settings, ["--attach", url], say) as (watcher, claim),
    ):
        say(f"asked {len(processes)} processes to record; send the server requests")
        return _follow(processes, watcher, claim)


def request_recording(processes: Sequence[psutil.Process], settings: Settings) -> None:
    """Asks processes that `recordable_among` found to record; they begin within a second."""
    registry = registry_folder()
    for process in processes:
        write_whole(registry / request_name(process.pid), settings.to_json())


@contextmanager
def requested(
    processes: Sequence[psutil.Process],
    settings: Settings,
    command: Sequence[str],
    say: Callable[[str], None],
) -> Iterator[tuple[Watcher, Claim]]:
    """Asks processes to record, for as long as somebody watches; a folder without steps goes."""
    settings = replace(settings, run=settings.run or secrets.token_hex(8))
    with prepare_bundle(settings.folder, command, settings) as claim:
        try:
            request_recording(processes, settings)
            yield Watcher(settings.pieces, settings.watched_steps, say), claim
        finally:
            remove_empty(settings.folder, claim)


def _follow(processes: Sequence[psutil.Process], watcher: Watcher, claim: Claim) -> Bundle:
    """Waits for the window and makes the bundle; Ctrl-C ends the window."""
    state = "complete"
    patience = PATIENT
    try:
        while not watcher.done():
            if vanished := vanished_folder(claim):
                raise vanished
            watcher.check()
            if watcher.broken() or not any(map(_runs, processes)):
                state = "interrupted"
                break
            watcher.show()
            watcher.wait(watcher.done, 0.5)
    except KeyboardInterrupt as error:
        state = "interrupted"
        patience = patience_of(error)
        watcher.say("ending the recording and keeping what there is")
    if vanished := vanished_folder(claim):
        raise vanished
    watcher.stop()
    watcher.wait(
        lambda: watcher.done() or (watcher.broken() and watcher.settled()),
        patience.flush_s if watcher.recorded() else 2.0,
    )
    watcher.wait_for_engine(patience.engine_s)
    if not has_steps(watcher.pieces) and (lost := unwritten(watcher)):
        raise CommandError(lost)
    return make_bundle(claim.folder, watcher, watcher.say, state)


def _runs(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def recordable_processes(port: int) -> list[psutil.Process]:
    """The vLLM processes below whatever listens on that port that spark-prof can record."""
    server = _listener(port)
    if server is None:
        raise CommandError(
            f"nothing listens on port {port} that this user may look at: start vllm serve there, "
            "or give the URL where it listens"
        )
    found = recordable_among(server)
    if not found:
        raise CommandError(
            f"the server on port {port} (process {server.pid}) cannot be recorded: is spark-prof "
            "installed in its environment (for a container, in the image, and this run inside it), "
            "is its vLLM 0.24 to 0.33, and does its VLLM_PLUGINS, if set, name spark_prof?"
        )
    return found


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


def _listener(port: int) -> psutil.Process | None:
    for found in psutil.net_connections(kind="tcp"):
        if found.status == psutil.CONN_LISTEN and found.laddr[1:2] == (port,) and found.pid:
            return psutil.Process(found.pid)
    return None


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

"""Starts the explorer as a person does, and ends it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import psutil
from playwright.sync_api import BrowserContext

EXPLORE = (sys.executable, "-m", "spark_prof.cli.main", "explore")
_TOKEN = "that-of-every-test"

_SECONDS = 60
"""A server that does not listen by then never will."""


def free_port() -> int:
    """A port of this machine on which nobody listens."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def address(url: str) -> str:
    """What the server of this URL prints."""
    return f"{url}/?token={_TOKEN}"


def let_in(context: BrowserContext, url: str) -> None:
    """Gives a browser the server's cookie, as the printed address does."""
    assert context.request.get(address(url), max_redirects=0).status == 303


class Served:
    """A running server; its caches are its own.

    Args:
        command: without `--port`, which is added.
        folder: an existing one for its caches and its log.
        port: to listen on, a free one if None.
        port_option: how the command spells it.
    """

    def __init__(
        self,
        command: Sequence[str],
        folder: Path,
        port: int | None = None,
        port_option: str = "--port",
    ) -> None:
        self.port = port or free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._log = folder / "server.log"
        own = {"XDG_CACHE_HOME": str(folder / "cache"), "HOME": str(folder), "NO_COLOR": "1"}
        own["SPARK_PROF_TOKEN"] = _TOKEN
        with self._log.open("wb") as log:
            self.began = time.perf_counter()
            self.process = subprocess.Popen(
                [*command, port_option, str(self.port)],
                env=os.environ | own,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    @property
    def log(self) -> str:
        """What it has printed."""
        return self._log.read_text(errors="replace")

    def __enter__(self) -> Served:
        while time.perf_counter() - self.began < _SECONDS:
            assert self.process.poll() is None, f"the server ended:\n{self.log}"
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
            except OSError:
                time.sleep(0.01)
            else:
                return self
        self.close()
        raise AssertionError(f"no server after {_SECONDS} s:\n{self.log}")

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends it and what it has started."""
        started = psutil.Process(self.process.pid).children(recursive=True) if self.alive else []
        self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        for child in started:
            if child.is_running():
                child.kill()

    @property
    def alive(self) -> bool:
        """Whether it still runs."""
        return self.process.poll() is None

"""Runs Streamlit in this process, so that what is read beforehand need not be read again."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
import webbrowser
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout, suppress
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException
from pathlib import Path

import psutil

from spark_prof.explorer.loading import load
from spark_prof.explorer.ports import address_in_url

__all__ = ["serve"]

_SCRIPT = Path(__file__).parent / "script" / "explorer.py"
_FLAGS = {
    "browser.gatherUsageStats": False,
    "client.showErrorDetails": "none",
    "client.toolbarMode": "viewer",
    "global.developmentMode": False,
    "logger.hideWelcomeMessage": True,
    "logger.level": "error",
    "runner.magicEnabled": False,
    "server.enableStaticServing": False,
    "server.fileWatcherType": "none",
    "server.headless": True,
    "server.maxMessageSize": 5,
    "server.runOnSave": False,
}
"""No telemetry, no watching of files, no button to publish; a message of more than 5 MB is none."""


def serve(
    sources: Sequence[str],
    ranks: Sequence[int],
    host: str,
    port: int,
    ready: Callable[[], None],
    then: Callable[[], None],
    *,
    show: bool = False,
) -> None:
    """Serves the explorer until it is ended by SIGINT or SIGTERM.

    Args:
        sources: what to show.
        ranks: those that can be chosen, all if empty.
        host: address to listen on.
        port: to listen on.
        ready: called once the server listens; returns when there is something to see, and raises
            CommandError if there never will.
        then: what is done beside the server afterwards.
        show: opens the page in the desktop's browser.

    Raises:
        CommandError: of `ready`.
    """
    from streamlit import net_util
    from streamlit.web import bootstrap

    # Streamlit asks a server on the internet for this when a page of another origin connects.
    net_util.get_external_ip = lambda: None
    flags = {"server.address": host, "server.port": port, **_FLAGS}
    options = {name.replace(".", "_"): value for name, value in flags.items()}
    bootstrap.load_config_options(options)
    announcer = _Announcer(host, port, ready, then, show)
    announcer.start()
    arguments = [",".join(map(str, ranks)), *sources]
    # Until Streamlit is ready to end by itself, a handler that does not interrupt it half made.
    signal.signal(signal.SIGINT, _quit)
    try:
        # What Streamlit says of itself.
        with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere):
            bootstrap.run(str(_SCRIPT), False, arguments, options)
    finally:
        _end_children()
    if announcer.fault:
        raise announcer.fault


class _Announcer(threading.Thread):
    """Says where to look once somebody listens there and there is something to see."""

    def __init__(
        self,
        host: str,
        port: int,
        ready: Callable[[], None],
        then: Callable[[], None],
        show: bool,
    ) -> None:
        super().__init__(daemon=True)
        self.fault: Exception | None = None
        self._address, self._port = address_in_url(host), port
        self._ready, self._then, self._show = ready, then, show

    def run(self) -> None:
        """Announces the server, or ends it where there is nothing to see; then does the rest."""
        while not self._listens():
            time.sleep(0.02)
        try:
            # A browser that is there already has enough to do with Streamlit's own scripts.
            load()
            self._ready()
        except Exception as error:  # it is raised again where the server has ended
            self.fault = error
            os.kill(os.getpid(), signal.SIGINT)
            return
        url = f"http://{self._address}:{self._port}"
        with suppress(OSError):
            print(f"spark-prof: {url} (Ctrl-C ends it)", file=sys.stderr, flush=True)
        if self._show:
            webbrowser.open(url)
        self._then()

    def _listens(self) -> bool:
        """Whether the server answers."""
        try:
            asked = HTTPConnection(self._address.strip("[]"), self._port, timeout=1)
            asked.request("GET", "/_stcore/health")
            return asked.getresponse().status == HTTPStatus.OK
        except (OSError, HTTPException):
            return False


def _quit(*_: object) -> None:
    _end_children()
    with suppress(OSError):
        print("spark-prof: stopped", file=sys.stderr, flush=True)
    os._exit(130)


def _end_children() -> None:
    """Ends what still reads a source: nobody will look at it."""
    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            child.terminate()

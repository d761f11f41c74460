"""Runs the server in this process, so that what is read beforehand need not be read again."""

from __future__ import annotations

import gc
import ipaddress
import os
import signal
import socket
import sys
import threading
import webbrowser
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from importlib import import_module
from pathlib import Path

import psutil
import uvicorn

from spark_prof.datasets.prepared import first_page
from spark_prof.explorer.access import Access
from spark_prof.explorer.early_page import early_page, streamlit_files
from spark_prof.explorer.front import Front, Mounted
from spark_prof.explorer.loading import IMPORTING, load
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
    "runner.postScriptGC": False,
    "server.enableStaticServing": False,
    "server.fileWatcherType": "none",
    "server.headless": True,
    "server.maxMessageSize": 5,
    "server.runOnSave": False,
}
"""No telemetry, no watching of files, no button to publish; a message of more than 5 MB is none.

Nor are all objects looked through for garbage after each run, while its last message waits."""


def serve(
    sources: Sequence[str],
    ranks: Sequence[int],
    host: str,
    listening: socket.socket,
    ready: Callable[[], None],
    then: Callable[[], None],
    *,
    allowed: Sequence[str] = (),
    token: str | None = None,
    show: bool = False,
) -> None:
    """Serves the explorer until it is ended by SIGINT or SIGTERM.

    Args:
        sources: what to show.
        ranks: those that can be chosen, all if empty.
        host: name or address, as the user gave it.
        listening: a socket that listens there.
        ready: called once the server listens; returns when there is something to see, and raises
            CommandError if there never will.
        then: what is done beside the server afterwards.
        allowed: names of a proxy or a tunnel by which it may be addressed as well.
        token: that whoever reads has to have, None if nobody has to.
        show: opens the page in the desktop's browser.

    Raises:
        CommandError: of `ready`.
    """
    # The script's, as `streamlit run` would set them.
    sys.argv = [str(_SCRIPT), ",".join(map(str, ranks)), *sources]
    reads = threading.Event()
    bound, port = listening.getsockname()[:2]
    anywhere = ipaddress.ip_address(bound).is_unspecified
    front = Front(
        partial(_streamlit, host, port, reads),
        early_page(sources[0]),
        first_page(sources[0], ranks[0] if ranks else None),
        lambda error: announcer.end(error),
        streamlit_files() / "static",
    )
    access = Access(front, (host, bound), allowed, token=token, anywhere=anywhere)
    # What a proxy says of the other end is not believed: who it is decides over a ticket.
    server = uvicorn.Server(
        uvicorn.Config(
            access, host, port, loop="asyncio", lifespan="on", log_config=None, access_log=False,
            ws_per_message_deflate=False, timeout_graceful_shutdown=1, proxy_headers=False,
        )
    )  # fmt: skip
    url = f"http://{address_in_url(bound if anywhere else host)}:{port}"
    announcer = _Announcer(reads, url, token, access.ticket, ready, then, show)

    def end(*_: object) -> None:
        if not server.started:  # else the server ends by itself, and its signals come again
            _quit()

    signal.signal(signal.SIGINT, end)
    signal.signal(signal.SIGTERM, end)
    announcer.start()
    try:
        server.run(sockets=[listening])
    finally:
        _end_children()
    if announcer.fault:
        raise announcer.fault


def _streamlit(host: str, port: int, reads: threading.Event) -> Mounted:
    """Imports what reads, which sets the event, then Streamlit and everything for the first page.

    That order, for pandas has to be whole before Streamlit's figures look for it.
    """
    with IMPORTING:
        import_module("spark_prof.explorer.start")
        reads.set()
        import streamlit
        from streamlit import net_util
        from streamlit.web import bootstrap

    # Streamlit asks a server on the internet for this when a page of another origin connects.
    net_util.get_external_ip = lambda: None
    flags = {"server.address": host, "server.port": port, **_FLAGS}
    bootstrap.load_config_options({name.replace(".", "_"): value for name, value in flags.items()})
    application: Mounted = streamlit.App(_SCRIPT)
    load()
    gc.freeze()  # modules stay: nobody need look through them for garbage
    return application


class _Announcer(threading.Thread):
    """Says where to look once somebody listens there and there is something to see."""

    def __init__(
        self,
        reads: threading.Event,
        url: str,
        token: str | None,
        ticket: Callable[[], str],
        ready: Callable[[], None],
        then: Callable[[], None],
        show: bool,
    ) -> None:
        super().__init__(daemon=True)
        self.fault: Exception | None = None
        self._reads, self._url, self._token, self._ticket = reads, url, token, ticket
        self._ready, self._then, self._show = ready, then, show

    def run(self) -> None:
        """Announces the server, or ends it where there is nothing to see; then does the rest."""
        self._reads.wait()  # by then the server listens
        try:
            self._ready()
        except Exception as error:
            self.end(error)
            return
        known = f"/?token={self._token}" if self._token else ""
        with suppress(OSError):
            print(f"spark-prof: {self._url}{known} (Ctrl-C ends it)", file=sys.stderr, flush=True)
        if self._show:
            # Everybody here can read a browser's arguments: they never have the token.
            webbrowser.open(f"{self._url}/?ticket={self._ticket()}" if self._token else self._url)
        self._then()

    def end(self, fault: Exception) -> None:
        """Ends the server; what went wrong first is raised again where it has ended."""
        self.fault = self.fault or fault
        os.kill(os.getpid(), signal.SIGINT)


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

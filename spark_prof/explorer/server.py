"""Serves the Streamlit app in this process, on a socket that already listens."""

from __future__ import annotations

import errno
import ipaddress
import os
import socket
import sys
import threading
import time
import webbrowser
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import streamlit
import uvicorn
from streamlit import net_util
from streamlit.web import bootstrap

from spark_prof.ending import TerminatedError, leave_nothing
from spark_prof.errors import CommandError
from spark_prof.explorer.access import Access, Application, Receive, Scope, Send
from spark_prof.explorer.perfetto_ui import routes

DEFAULT_PORT = 8501
_TRIED = 50
_WAITING = 128  # connections that the system keeps until the server takes them


def listen(host: str, port: int | None) -> socket.socket:
    """A socket that listens on a port, or on the first free one from `DEFAULT_PORT` on if None.

    Whoever is to serve there gets this very socket: a port that was only looked at may be taken by
    then, by another explorer that has looked at the same time.
    """
    if port is not None:
        if listening := _listen(host, port):
            return listening
        raise CommandError(f"port {port} of {host} is taken; give another --port, or none")
    for tried in range(DEFAULT_PORT, DEFAULT_PORT + _TRIED):
        if listening := _listen(host, tried):
            return listening
    last = DEFAULT_PORT + _TRIED - 1
    raise CommandError(f"ports {DEFAULT_PORT} to {last} of {host} are taken; give a --port")


def _listen(host: str, port: int) -> socket.socket | None:
    """A socket that listens there; None where somebody else does."""
    try:
        family, *_, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        # Two may have bound it: only one of them can listen.
        return socket.create_server(address, family=family, backlog=_WAITING)
    except (OSError, UnicodeError) as error:
        number = getattr(error, "errno", None)
        reason = (getattr(error, "strerror", None) or str(error)).partition(" (while ")[0]
        if number == errno.EADDRINUSE:
            return None
        if number == errno.EACCES:
            raise CommandError(f"port {port} needs more rights; give a --port above 1023") from None
        raise CommandError(
            f"cannot listen on {host} ({reason}); give a --host of this machine"
        ) from None


def address_in_url(host: str) -> str:
    """The host as an address names it; one that stands for all addresses is this machine's own."""
    if host in ("0.0.0.0", "::"):
        return "127.0.0.1" if host == "0.0.0.0" else "[::1]"
    return f"[{host}]" if ":" in host else host


if TYPE_CHECKING:
    from spark_prof.explorer.cache import RankReading

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
    "theme.dark.primaryColor": "#56B4E9",
    "theme.light.primaryColor": "#0072B2",
}
"""No telemetry, no watching of files, no button to publish; a message of more than 5 MB is none.

Nor are all objects looked through for garbage after each run, while its last message waits."""

_SMALL = 32 << 20  # bytes of a source that is read about as fast as the server starts
_CHECKED = 4  # so many small sources are read to find one that can be shown


def serve(
    sources: Sequence[str],
    ranks: Sequence[int],
    host: str,
    listening: socket.socket,
    *,
    allowed: Sequence[str] = (),
    token: str | None = None,
    show: bool = False,
    on_ready: Callable[[str], None] | None = None,
) -> None:
    """Serves the explorer until SIGINT or SIGTERM ends it, and the process with it.

    Args:
        ranks: those that can be chosen, all if empty.
        allowed: names of a proxy or a tunnel by which it may be addressed as well.
        token: that whoever reads has to have, None if nobody has to.
        show: opens the page in the desktop's browser.
        on_ready: is given the address, with its token, once there is something to see.
    """
    # The script's, as `streamlit run` would set them.
    sys.argv = [str(_SCRIPT), ",".join(map(str, ranks)), *sources]
    server, access, url = _server(host, listening, allowed, token)
    faults: list[Exception] = []

    def tell() -> None:
        """Says where to look once there is something to see."""
        try:
            begin(sources, ranks)
        except Exception as fault:
            faults.append(fault)
            server.should_exit = True
            return
        while not server.started:
            time.sleep(0.01)
        page = f"{url}/{first_page(sources)}"
        address = f"{page}?token={token}" if token else page.removesuffix("/")
        with suppress(OSError):
            print(f"spark-prof: {address} (Ctrl-C ends it)", file=sys.stderr, flush=True)
        if on_ready is not None:
            on_ready(address)
        if show:
            # Everybody here can read a browser's arguments: they never have the token.
            webbrowser.open(f"{page}?ticket={access.ticket()}" if token else address)

    threading.Thread(target=tell, daemon=True).start()
    try:
        server.run(sockets=[listening])
    except (KeyboardInterrupt, TerminatedError):  # it raises again what has ended it
        if not server.started:
            raise
    if faults:
        raise faults[0]
    # A page that still reads would go on for its time, and leave its temporary files.
    leave_nothing()
    os._exit(0)


def _server(
    host: str, listening: socket.socket, allowed: Sequence[str], token: str | None
) -> tuple[uvicorn.Server, Access, str]:
    """The server of the page, what guards it, and its address."""
    bound, port = listening.getsockname()[:2]
    # Streamlit asks a server on the internet for this when a page of another origin connects.
    net_util.get_external_ip = lambda: None
    flags = {"server.address": host, "server.port": port, **_FLAGS}
    bootstrap.load_config_options({name.replace(".", "_"): value for name, value in flags.items()})
    anywhere = ipaddress.ip_address(bound).is_unspecified
    access = Access(
        _Preloading(streamlit.App(_SCRIPT, routes=routes())),
        (host, bound),
        allowed,
        token=token,
        anywhere=anywhere,
    )
    url = f"http://{address_in_url(bound if anywhere else host)}:{port}"
    # What a proxy says of the other end is not believed: who it is decides over a ticket.
    config = uvicorn.Config(
        access, host, port, loop="asyncio", lifespan="on", log_config=None, access_log=False,
        ws_per_message_deflate=False, timeout_graceful_shutdown=1, proxy_headers=False,
    )  # fmt: skip
    server = uvicorn.Server(config)
    return server, access, url


class _Preloading:
    """Tells the browser with each page to fetch what draws figures, 5 MB of program, at once.

    It would ask for it only when it meets the first figure.

    # bar: clicks at 1 M kernels at most 1.5 times as long as an empty application's
    """

    def __init__(self, application: Application) -> None:
        self._application = application
        scripts = Path(streamlit.__file__).parent / "static" / "static" / "js"
        self._links = [
            (b"link", f"</static/js/{path.name}>; rel=modulepreload; crossorigin".encode())
            for path in scripts.glob("PlotlyChart.*.js")
        ]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def linked(message: Scope) -> None:
            if message["type"] == "http.response.start" and _is_page(message["headers"]):
                message = {**message, "headers": [*message["headers"], *self._links]}
            await send(message)

        await self._application(scope, receive, linked)


def _is_page(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    return any(name == b"content-type" and kind.startswith(b"text/html") for name, kind in headers)


def begin(names: Sequence[str], ranks: Sequence[int]) -> None:
    """Looks whether there is anything to show, and begins to read the first recording.

    Small recordings are read at once, until one of them can be shown; a page says what is wrong
    with a large one.
    """
    # A browser takes as long to start as these do to be imported: the server is there before.
    from spark_prof.explorer.cache import reading
    from spark_prof.explorer.entries import find_entries

    entries, _ = find_entries(*names)
    good = [entry for entry in entries if not entry.fault]
    if not good:
        raise CommandError(entries[0].fault)
    recorded = [entry.source for entry in good if entry.result is None]
    readings = [reading(source, ranks[0] if ranks else None) for source in recorded[:_CHECKED]]
    if len(recorded) == len(good) <= _CHECKED and all(map(_is_small, recorded)):
        faults = []
        for one in readings:
            try:
                one.get()
            except CommandError as error:
                faults.append(error)
            else:
                return
        raise faults[0]
    if readings:
        threading.Thread(target=_read, args=(readings[0],), daemon=True).start()


def first_page(names: Sequence[str]) -> str:
    """The page that opens: two recordings beside each other, else the overview, which has no path.

    first_page(["before", "after"]) == "compare"
    """
    from spark_prof.explorer.entries import find_entries

    entries, _ = find_entries(*names)
    whole = [entry for entry in entries if not entry.fault and entry.result is None]
    return "compare" if len(names) == len(entries) == len(whole) == 2 else ""


def _read(one: RankReading) -> None:
    """Reads while nobody waits; what is wrong is said by the page."""
    with suppress(CommandError):
        one.get()


def _is_small(source: str) -> bool:
    path = Path(source)
    try:
        files = [path] if path.is_file() else [*path.rglob("*")]
        return path.exists() and sum(os.path.getsize(file) for file in files) < _SMALL
    except OSError:
        return False

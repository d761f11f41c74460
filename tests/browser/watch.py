"""What a page does that a person does not see: errors, requests, messages from the server."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from playwright.sync_api import ConsoleMessage, Page, Request, WebSocket
from streamlit.proto.BackMsg_pb2 import BackMsg
from streamlit.proto.ForwardMsg_pb2 import ForwardMsg

_PROBE = re.compile(r"^http://127\.0\.0\.1:\d+/\w+/_stcore/(health|host-config)$")
"""Where Streamlit looks for a server below the address of a page, before it asks the one at the
root; Chromium writes into the console that there is none."""

_FORBIDDEN = re.compile(r"Content.Security.Policy")
"""Perfetto's UI asks for what its policy forbids, which Chromium writes into the console."""

_FOR_ANOTHER = ForwardMsg.FINISHED_EARLY_FOR_RERUN
_RUN, _ASK = "new_session", "rerun_script"
_LARGEST_MARK = 4096
"""Bytes; messages that begin or end a run of the script are below it."""


@dataclass
class Watch:
    """What was seen since the page was made.

    Attributes:
        errors: of the console, and exceptions that nobody caught.
        outside: requests that would leave this machine.
        largest: bytes of the largest message of the server.
        finished: how many runs of the script have ended.
    """

    errors: list[str] = field(default_factory=list)
    outside: list[str] = field(default_factory=list)
    largest: int = 0
    finished: int = 0
    _asked: bool = False
    _running: bool = False

    @property
    def idle(self) -> bool:
        """Whether every run that was asked for has ended."""
        return not (self._asked or self._running)

    def message(self, payload: str | bytes) -> None:
        """Takes a message of the server."""
        self.largest = max(self.largest, len(payload))
        if isinstance(payload, str) or len(payload) > _LARGEST_MARK:
            return
        message = ForwardMsg.FromString(payload)
        kind = message.WhichOneof("type")
        if kind == _RUN:
            self._asked, self._running = False, True
        elif kind == "script_finished" and message.script_finished != _FOR_ANOTHER:
            self._running = False
            self.finished += 1

    def sent(self, payload: str | bytes) -> None:
        """Takes a message to the server."""
        if isinstance(payload, bytes) and BackMsg.FromString(payload).WhichOneof("type") == _ASK:
            self._asked = True

    def closed(self) -> None:
        """The connection is gone, and with it what was asked for."""
        self._asked = self._running = False


def watch(page: Page) -> Watch:
    """Begins to watch a page that has loaded nothing yet."""
    seen = Watch()

    def on_console(message: ConsoleMessage) -> None:
        url = str(message.location.get("url", ""))
        probed = "404" in message.text and _PROBE.search(url)
        forbidden = "/perfetto/" in url and _FORBIDDEN.search(message.text)
        if message.type == "error" and not (probed or forbidden):
            seen.errors.append(f"console: {message.text} ({url})")

    def on_request(request: Request) -> None:
        if not _stays(request.url):
            seen.outside.append(request.url)

    def on_failed(request: Request) -> None:
        if request.failure == "csp" and request.url in seen.outside:
            seen.outside.remove(request.url)  # it never left

    def on_socket(socket: WebSocket) -> None:
        if not _stays(socket.url):
            seen.outside.append(socket.url)
        socket.on("framereceived", seen.message)
        socket.on("framesent", seen.sent)
        socket.on("close", lambda _: seen.closed())

    page.on("console", on_console)
    page.on("pageerror", lambda error: seen.errors.append(f"page: {error}"))
    page.on("request", on_request)
    page.on("requestfailed", on_failed)
    page.on("websocket", on_socket)
    return seen


def _stays(url: str) -> bool:
    parts = urlsplit(url)
    return parts.scheme in ("data", "blob", "about", "file") or parts.hostname == "127.0.0.1"

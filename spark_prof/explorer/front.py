"""What listens before Streamlit can: it serves the first page, and hands on all else.

It is an application of the ASGI 3.0 specification.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import AbstractAsyncContextManager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from spark_prof.explorer.early_page import EarlyPage

__all__ = ["Front", "Mounted"]

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

_PATIENCE_S = 0.015
_BEGINS_WITHIN_S = 1.5
"""A source that nobody has begun to read by then will not be."""

_MOST_S = 6.0
"""Streamlit's scripts wait so long at most; they say how long a reading has taken."""

_HEAD_START_S = 1.0
"""So long the recording is read alone: importing meanwhile costs the first page half a second."""

_FILES = "/static/"
_HEADERS = [(b"content-type", b"text/html; charset=utf-8"), (b"cache-control", b"no-store")]


class Mounted(Protocol):
    """An application whose begin and end are somebody else's to tell, such as `st.App`."""

    def lifespan(self) -> Callable[[Any], AbstractAsyncContextManager[Any]]:
        """What is entered when it begins and left when it ends."""

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Answers one request, as ASGI has it."""


class Front:
    """Serves the first page while the rest of the server is being imported.

    Args:
        make: makes the application behind it; called once, in a thread of its own.
        page: the document of the first page, None for that of the application.
        look: what the recording says first, and whether it is being read.
        failed: is told why there will be no application.
        files: a folder that is served as `/static` until the application does.
    """

    def __init__(
        self,
        make: Callable[[], Mounted],
        page: EarlyPage | None,
        look: Callable[[], tuple[str | None, bool]],
        failed: Callable[[Exception], None],
        files: Path | None = None,
    ) -> None:
        self._make, self._page, self._look, self._failed = make, page, look, failed
        self._files = files
        self._began = time.monotonic()

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Answers one request, as ASGI has it."""
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        elif self._page is not None and _is_first(scope):
            await self._draw(self._page, send)
        elif not await self._sent_file(scope, receive, send):
            await (await asyncio.shield(self._behind))(scope, receive, send)

    async def _live(self, receive: Receive, send: Send) -> None:
        await receive()
        self._behind: asyncio.Future[Mounted] = asyncio.get_running_loop().create_future()
        ended = asyncio.Event()
        running = asyncio.create_task(self._run(ended))
        await send({"type": "lifespan.startup.complete"})
        await receive()
        ended.set()
        running.cancel() if not self._behind.done() else await running
        await send({"type": "lifespan.shutdown.complete"})

    async def _run(self, ended: asyncio.Event) -> None:
        try:
            # The cores are left to whoever reads, until that has said something or had its time.
            start = self._began + _HEAD_START_S
            await self._said(lambda busy: busy and time.monotonic() < start)
            application = await _in_background(self._make)
            async with application.lifespan()(None):
                self._behind.set_result(application)
                await ended.wait()
        except Exception as error:
            if not self._behind.done():
                self._behind.set_exception(error)
            self._failed(error)

    async def _draw(self, page: EarlyPage, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
        await _send(send, page.before, more=True)
        said = await self._said(partial(self._may_come, time.monotonic()))
        await _send(send, (said or "") + page.after, more=False)

    async def _sent_file(self, scope: Message, receive: Receive, send: Send) -> bool:
        """Serves a file while nobody else does; whether it did."""
        wanted = scope["type"] == "http" and scope["path"].startswith(_FILES)
        if self._files is None or self._behind.done() or not wanted:
            return False
        from starlette.exceptions import HTTPException
        from starlette.staticfiles import StaticFiles

        with suppress(HTTPException):  # there is no such file
            inside = {**scope, "path": scope["path"].removeprefix(_FILES)}
            await StaticFiles(directory=self._files)(inside, receive, send)
            return True
        return False

    async def _said(self, may_come: Callable[[bool], bool]) -> str | None:
        """What the recording says first, once it does; None where that takes too long.

        Args:
            may_come: whether to wait on, told whether the recording is being read.
        """
        said, busy = self._look()
        while said is None and may_come(busy):
            await asyncio.sleep(_PATIENCE_S)
            said, busy = self._look()
        return said

    def _may_come(self, asked: float, busy: bool) -> bool:
        now = time.monotonic()
        return now < asked + _MOST_S if busy else now < self._began + _BEGINS_WITHIN_S


def _in_background(make: Callable[[], Mounted]) -> Awaitable[Mounted]:
    """Makes something in a thread of its own, which nobody waits for at the end."""
    loop = asyncio.get_running_loop()
    made: asyncio.Future[Mounted] = loop.create_future()

    def run() -> None:
        try:
            tell = partial(made.set_result, make())
        except Exception as error:
            tell = partial(made.set_exception, error)
        with suppress(RuntimeError):  # nobody waits any more
            loop.call_soon_threadsafe(lambda: made.done() or tell())

    threading.Thread(target=run, daemon=True).start()
    return made


def _is_first(scope: Message) -> bool:
    """Whether it asks for the first page of the first source: the address says no more."""
    return (
        scope["type"] == "http"
        and scope["method"] == "GET"
        and scope["path"] in ("/", "/overview")
        and not scope["query_string"]
    )


async def _send(send: Send, text: str, *, more: bool) -> None:
    await send({"type": "http.response.body", "body": text.encode(), "more_body": more})

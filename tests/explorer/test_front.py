"""What listens before Streamlit does: the first page goes on while the recording is read."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from spark_prof.explorer import front
from spark_prof.explorer.early_page import EarlyPage
from spark_prof.explorer.front import Front

Message = MutableMapping[str, Any]
PAGE = EarlyPage("<before>", "<after>")


class Application:
    """Answers with the path that it was asked for."""

    def __init__(self) -> None:
        self.lives = 0

    def lifespan(self) -> Callable[[Any], Any]:
        @asynccontextmanager
        async def live(_: Any) -> AsyncIterator[None]:
            self.lives += 1
            yield
            self.lives -= 1

        return live

    async def __call__(self, scope: Message, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": scope["path"].encode()})


class Reading:
    """A recording that says something when a test says so."""

    def __init__(self) -> None:
        self.said: str | None = None
        self.busy = True

    def __call__(self) -> tuple[str | None, bool]:
        return self.said, self.busy


class Running:
    """A front whose server has begun."""

    def __init__(self, made: Front) -> None:
        self.made = made
        self._inbox: asyncio.Queue[Message] = asyncio.Queue()
        self._outbox: asyncio.Queue[Message] = asyncio.Queue()

    async def __aenter__(self) -> Running:
        receive, send = self._inbox.get, self._outbox.put
        self._life = asyncio.create_task(self.made({"type": "lifespan"}, receive, send))
        self._inbox.put_nowait({"type": "lifespan.startup"})
        assert (await self._outbox.get())["type"] == "lifespan.startup.complete"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._inbox.put_nowait({"type": "lifespan.shutdown"})
        assert (await self._outbox.get())["type"] == "lifespan.shutdown.complete"
        await self._life

    async def get(self, path: str, got: list[str], query: bytes = b"", method: str = "GET") -> None:
        """Asks for a page; its parts are added as they come."""

        async def send(message: Message) -> None:
            if "body" in message:
                got.append(message["body"].decode())

        scope = {"type": "http", "method": method, "path": path, "query_string": query}
        scope |= {"headers": []}
        await self.made(scope, self._inbox.get, send)


def run(test: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(test(), 60))  # type: ignore[arg-type]


def test_the_page_begins_at_once_and_goes_on_when_the_recording_says_something() -> None:
    async def test() -> None:
        reading, held = Reading(), threading.Event()

        def make() -> Application:
            held.wait(60)
            return Application()

        async with Running(Front(make, PAGE, reading, pytest.fail)) as server:
            got: list[str] = []
            asked = asyncio.create_task(server.get("/", got))
            await asyncio.sleep(0.1)
            assert got == ["<before>"]
            assert not asked.done()
            reading.said = "<said>"
            await asked
            assert got == ["<before>", "<said><after>"]
            held.set()

    run(test)


@pytest.mark.parametrize(
    ("path", "query", "method"),
    [("/layers", b"", "GET"), ("/", b"source=1", "GET"), ("/", b"", "HEAD"), ("/x/y", b"", "GET")],
)
def test_everything_else_waits_for_streamlit(path: str, query: bytes, method: str) -> None:
    async def test() -> None:
        made, held = Application(), threading.Event()

        def make() -> Application:
            held.wait(60)
            return made

        async with Running(Front(make, PAGE, Reading(), pytest.fail)) as server:
            got: list[str] = []
            asked = asyncio.create_task(server.get(path, got, query, method))
            await asyncio.sleep(0.05)
            assert not got
            held.set()
            await asked
            assert got == [path]
            assert made.lives == 1
        assert made.lives == 0

    run(test)


def test_scripts_are_served_until_streamlit_serves_them(tmp_path: Path) -> None:
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "a.js").write_text("let a;")
    (tmp_path / "b.js").write_text("let b;")

    async def test() -> None:
        held = threading.Event()

        def make() -> Application:
            held.wait(60)
            return Application()

        reading = Reading()
        reading.busy = False
        async with Running(Front(make, PAGE, reading, pytest.fail, tmp_path / "files")) as server:
            got: list[str] = []
            await server.get("/static/a.js", got)
            assert "".join(got) == "let a;"
            others = [[], [], []]  # type: list[list[str]]
            paths = ("/static/none.js", "/static/../b.js", "/b.js")
            asked = [
                asyncio.create_task(server.get(p, o)) for p, o in zip(paths, others, strict=True)
            ]
            await asyncio.sleep(0.1)
            assert others == [[], [], []]
            held.set()
            await asyncio.gather(*asked)
            assert others == [[path] for path in paths]
            got.clear()
            await server.get("/static/a.js", got)
            assert got == ["/static/a.js"]

    run(test)


def test_without_a_page_of_its_own_streamlit_answers() -> None:
    async def test() -> None:
        async with Running(Front(Application, None, Reading(), pytest.fail)) as server:
            got: list[str] = []
            await server.get("/", got)
            assert got == ["/"]

    run(test)


@pytest.mark.parametrize("busy", [True, False])
def test_a_recording_that_says_nothing_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch, busy: bool
) -> None:
    monkeypatch.setattr(front, "_MOST_S", 0.1)
    monkeypatch.setattr(front, "_BEGINS_WITHIN_S", 0.1)

    async def test() -> None:
        reading = Reading()
        reading.busy = busy
        async with Running(Front(Application, PAGE, reading, pytest.fail)) as server:
            got: list[str] = []
            await server.get("/", got)
            assert got == ["<before>", "<after>"]

    run(test)


def test_what_keeps_streamlit_from_starting_is_told() -> None:
    faults: list[Exception] = []

    def make() -> Application:
        raise ImportError("no streamlit")

    async def test() -> None:
        async with Running(Front(make, PAGE, Reading(), faults.append)) as server:
            with suppress(ImportError):
                await server.get("/layers", [])
                pytest.fail("nobody answered, and nobody said so")

    run(test)
    assert [str(fault) for fault in faults] == ["no streamlit"]


def test_it_ends_while_streamlit_is_imported() -> None:
    held = threading.Event()

    def make() -> Application:
        held.wait(60)
        return Application()

    async def test() -> None:
        async with Running(Front(make, PAGE, Reading(), pytest.fail)):
            pass

    run(test)
    held.set()


@pytest.mark.parametrize("ends", ["said", "idle", "time"])
def test_streamlit_is_imported_when_the_recording_has_said_something_or_had_its_time(
    monkeypatch: pytest.MonkeyPatch, ends: str
) -> None:
    monkeypatch.setattr(front, "_HEAD_START_S", 0.2 if ends == "time" else 60)
    begun = threading.Event()

    def make() -> Application:
        begun.set()
        return Application()

    async def test() -> None:
        reading = Reading()
        async with Running(Front(make, PAGE, reading, pytest.fail)) as server:
            await asyncio.sleep(0.1)
            assert not begun.is_set()
            if ends == "said":
                reading.said = "<said>"
            reading.busy = ends != "idle"
            got: list[str] = []
            await server.get("/layers", got)
            assert got == ["/layers"]

    run(test)
    assert begun.is_set()


def test_it_ends_while_the_recording_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(front, "_HEAD_START_S", 60)

    async def test() -> None:
        async with Running(Front(Application, PAGE, Reading(), pytest.fail)):
            await asyncio.sleep(0.05)

    run(test)

"""Who is let in, as a table of requests; an application that only tells that it was reached."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import psutil
import pytest

from spark_prof.explorer import access
from spark_prof.explorer.access import Access, canonical_name, new_token

TOKEN = "of-this-start_1"
HERE = "127.0.0.1:8501"
BEHIND = [
    (b"content-type", b"text/plain"), (b"Access-Control-Allow-Origin", b"*"),
    (b"access-control-allow-credentials", b"true"), (b"x-frame-options", b"ALLOWALL"),
    (b"content-security-policy", b"default-src 'self'"),
]  # fmt: skip


@dataclass
class Answer:
    """What came of a request: whether the application was reached, and what was sent."""

    reached: bool = False
    status: int = 0
    headers: list[tuple[bytes, bytes]] = field(default_factory=list)
    text: str = ""

    def header(self, name: bytes) -> str:
        return "; ".join(value.decode() for found, value in self.headers if found == name)


def ask(
    guard: dict[str, Any] | Access,
    headers: Sequence[tuple[str, str]],
    kind: str = "http",
    target: str = "/",
    method: str = "GET",
    client: tuple[str, int] = ("127.0.0.1", 5),
    server: tuple[str, int] = ("127.0.0.1", 8501),
) -> Answer:
    """Asks an application behind the middleware."""
    answer = Answer()

    async def application(scope: Any, receive: Any, send: Any) -> None:
        answer.reached = True
        if scope["type"] == "http":
            await send({"type": "http.response.start", "status": 200, "headers": BEHIND})
            await send({"type": "http.response.body", "body": b"findings"})
        else:
            await send({"type": "websocket.accept"})

    async def send(message: Any) -> None:
        answer.status = answer.status or message.get("status", 0)
        answer.headers += message.get("headers", ())
        answer.text += message.get("body", b"").decode()
        if message["type"] == "websocket.close":
            answer.status = 403  # as uvicorn has it for one that was not accepted

    async def receive() -> Any:
        raise AssertionError("nothing has to be received")

    made = guard if isinstance(guard, Access) else Access(application, **guard)
    made._application = application
    path, _, query = target.partition("?")
    scope = {
        "type": kind, "path": path, "raw_path": path.encode(), "query_string": query.encode(),
        "headers": [(name.lower().encode(), value.encode()) for name, value in headers],
        "scheme": "http" if kind == "http" else "ws", "client": client, "server": server,
    }  # fmt: skip
    if kind == "http":
        scope["method"] = method
    asyncio.run(made(scope, receive, send))
    return answer


def cookie(guard: Access, host: str = HERE) -> tuple[str, str]:
    """The cookie that a browser has once it has opened the printed address."""
    given = ask(guard, [("host", host)], target=f"/?token={TOKEN}").header(b"set-cookie")
    return "cookie", given.partition(";")[0]


def wrong(found: Iterable[tuple[object, bool, bool]]) -> list[object]:
    return [case for case, was, wanted in found if was is not wanted]


LET_IN = (
    "localhost", "localhost:8501", "LocalHost:1", "127.0.0.1", "127.0.0.1:65535", "127.255.0.9:80",
    "[::1]", "[::1]:8501", "[0:0:0:0:0:0:0:1]:8501", "box:8501", "BOX", "10.1.2.3:9",
    "[fe80::2]:8501", "tunnel.example", " localhost:8501\t ",
)  # fmt: skip
KEPT_OUT = (
    "", " ", "evil.example", "evil.example:8501", "localhost.evil.example",
    "127.0.0.1.evil.example", "evil.localhost", "localhost.", "localhost.:8501", "box.",
    "127.0.0.1.", "user@localhost",
    "localhost@evil.example", "localhost,evil.example", "localhost, localhost", "localhost:",
    "localhost:0", "localhost:65536", "localhost:99999", "localhost:8501x", "localhost:-1",
    "localhost:80:80", "localhost/", "localhost/..", "localhost#", "localhost?x", "localhost\\",
    "local host", "localhost\x00", "localh\xf6st", "loc\u017fhost", "%6cocalhost",
    "http://localhost", "//localhost", "127.1", "0x7f.0.0.1", "2130706433", "0177.0.0.1",
    "127.0.0.1%00", "::1", "::1:8501", "[::1", "::1]", "[::1]x", "[::1%lo]", "[localhost]",
    "[127.0.0.1]", "[::ffff:127.0.0.1]", "[]", "[::2]", "0.0.0.0:8501", "128.0.0.1", "10.1.2.4",
    "box2", "abox", "sub.tunnel.example", "*", "localhost:\u0661", "localhost:8501\r\nx: y",
)  # fmt: skip
GUARD = {"names": ["Box", "10.1.2.3", "fe80::2%eth0"], "proxied": ["Tunnel.example"]}


def test_the_host_has_to_be_one_of_here() -> None:
    known = ("authorization", f"Bearer {TOKEN}")
    for guard in ({**GUARD, "token": TOKEN}, {**GUARD, "token": None}):
        for kind in ("http", "websocket"):
            found = [
                (host, ask(guard, [("host", host), known], kind).reached, host in LET_IN)
                for host in (*LET_IN, *KEPT_OUT)
            ]
            assert not wrong(found), (guard, kind)
            for several in ([], [HERE, HERE], [HERE, "evil.example"]):
                headers = [known, *(("host", host) for host in several)]
                assert not ask(guard, headers, kind).reached, several
    refused = ask({"token": TOKEN}, [("host", "evil.example"), known])
    assert (refused.status, refused.text.count("\n")) == (403, 1)
    assert "--allow-host" in refused.text


def test_a_target_that_is_no_path_is_refused() -> None:
    for target in ("http://evil.example/", "*", "evil.example:80", ""):
        assert not ask({"token": None}, [("host", HERE)], target=target).reached, target


def test_on_all_addresses_each_of_them_is_let_in() -> None:
    own = [one.address for found in psutil.net_if_addrs().values() for one in found
           if one.family in (socket.AF_INET, socket.AF_INET6)]  # fmt: skip
    hosts = [f"[{name.partition('%')[0]}]:1" if ":" in name else f"{name}:1" for name in own]
    hosts += [socket.gethostname(), "0.0.0.0:8501"]
    for host in hosts:
        guard = {"token": None, "names": ["0.0.0.0"]}
        assert ask({**guard, "anywhere": True}, [("host", host)]).reached, host
    for host in ("192.0.2.77", "evil.example", "[2001:db8::77]"):
        assert not ask({"token": None, "anywhere": True}, [("host", host)]).reached, host


ORIGINS = (
    # Host, Origin, whether they are the same
    (HERE, "http://127.0.0.1:8501", True),
    ("LOCALHOST:8501", "http://localhost:8501", True),
    ("localhost", "http://localhost:80", True),
    ("localhost:80", "http://localhost", True),
    ("[::1]:8501", "http://[::1]:8501", True),
    ("tunnel.example", "https://tunnel.example", True),
    ("tunnel.example", "http://tunnel.example", True),
    ("tunnel.example:8443", "https://tunnel.example:8443", True),
    ("tunnel.example", "https://tunnel.example:8443", False),
    (HERE, "https://127.0.0.1:8501", False),
    (HERE, "http://127.0.0.1:3000", False),
    (HERE, "http://127.0.0.1", False),
    (HERE, "http://localhost:8501", False),
    (HERE, "http://evil.example:8501", False),
    (HERE, "http://127.0.0.1:8501.evil.example", False),
    (HERE, "http://127.0.0.1:8501@evil.example", False),
    (HERE, "http://127.0.0.1:8501/", False),
    (HERE, "null", False), (HERE, "", False), (HERE, "file://", False), (HERE, HERE, False),
    (HERE, "http://127.0.0.1:8501, http://evil.example", False),
    (HERE, "chrome-extension://abcdef", False),
    ("tunnel.example", "ftp://tunnel.example", False),
)  # fmt: skip


def test_an_origin_has_to_be_its_own() -> None:
    for token in (TOKEN, None):
        for kind, method in (("websocket", ""), ("http", "POST"), ("http", "PUT"),
                             ("http", "DELETE"), ("http", "OPTIONS"), ("http", "GET")):  # fmt: skip
            found = []
            for host, origin, same in ORIGINS:
                known = ("authorization", f"token {TOKEN}")
                headers = [("host", host), ("origin", origin), known]
                answer = ask({**GUARD, "token": token}, headers, kind, method=method)
                found.append(((host, origin), answer.reached, same))
            assert not wrong(found), (kind, method)
            own = ("origin", f"http://{HERE}")
            twice = [("host", HERE), own, own, ("authorization", f"token {TOKEN}")]
            assert not ask({"token": token}, twice, kind, method=method).reached


def test_other_pages_may_only_be_left_for_it() -> None:
    cases = (
        # Sec-Fetch-Site, -Mode, -Dest, method, whether it is let in
        ("none", "navigate", "document", "GET", True),
        ("same-origin", "cors", "empty", "GET", True),
        ("same-origin", "navigate", "iframe", "GET", True),
        ("same-origin", "cors", "empty", "PUT", True),
        ("cross-site", "navigate", "document", "GET", True),
        ("same-site", "navigate", "document", "GET", True),
        ("cross-site", "navigate", "document", "POST", False),
        ("cross-site", "navigate", "iframe", "GET", False),
        ("cross-site", "navigate", "object", "GET", False),
        ("cross-site", "no-cors", "script", "GET", False),
        ("cross-site", "no-cors", "image", "GET", False),
        ("same-site", "cors", "empty", "GET", False),
        ("same-site", "no-cors", "document", "GET", False),
        ("unheard-of", "cors", "empty", "GET", False),
    )
    known = ("authorization", f"token {TOKEN}")
    found = []
    for site, mode, place, method, wanted in cases:
        headers = [("host", HERE), known, ("sec-fetch-site", site), ("sec-fetch-mode", mode)]
        headers += [("sec-fetch-dest", place)]
        answer = ask({"token": TOKEN}, headers, method=method)
        found.append(((site, mode, place, method), answer.reached, wanted))
    assert not wrong(found)
    foreign = [("host", HERE), known, ("sec-fetch-site", "same-site")]
    assert not ask({"token": TOKEN}, foreign, "websocket").reached


def test_token_and_cookie() -> None:
    guard = Access(None, token=TOKEN)  # type: ignore[arg-type]
    name, value = cookie(guard)
    of_earlier = cookie(Access(None, token=TOKEN))[1]  # type: ignore[arg-type]
    assert TOKEN not in value
    key, _, digest = value.partition("=")
    assert key == "spark-prof-8501"
    cases: tuple[tuple[list[tuple[str, str]], bool], ...] = (
        ([], False),
        ([(name, value)], True),
        ([(name, f"a=1; {value}; b=2")], True),
        ([(name, "a=1"), (name, value)], True),
        ([(name, f"{key}=planted; {value}")], True),
        ([(name, f"{key}={digest[:-1]}")], False),
        ([(name, f"{key}={digest}0")], False),
        ([(name, f"{key}={digest.upper()}")], False),
        ([(name, f"{key}=")], False),
        ([(name, key)], False),
        ([(name, f"{key}={TOKEN}")], False),
        ([(name, f"spark-prof-8502={digest}")], False),
        ([(name, of_earlier)], False),
        ([("authorization", f"token {TOKEN}")], True),
        ([("authorization", f"BEARER {TOKEN}")], True),
        ([("authorization", TOKEN)], False),
        ([("authorization", f"Basic {TOKEN}")], False),
        ([("authorization", f"token {TOKEN}x")], False),
        ([("authorization", "token ")], False),
        ([("authorization", f"token {digest}")], False),
        ([("authorization", "token \xf6")], False),
    )
    for kind, method in (("http", "GET"), ("http", "HEAD"), ("http", "POST"), ("websocket", "")):
        found = []
        for headers, wanted in cases:
            answer = ask(guard, [("host", HERE), *headers], kind, method=method)
            assert answer.reached or answer.status == 403
            assert not answer.reached or kind == "websocket" or answer.text == "findings"
            found.append((headers, answer.reached, wanted))
        assert not wrong(found), (kind, method)
    for kind, method in (("http", "POST"), ("http", "PUT"), ("websocket", "")):
        target = f"/?token={TOKEN}"
        assert not ask(guard, [("host", HERE)], kind, target, method).reached, kind
    assert ask({"token": None}, [("host", HERE)]).reached
    assert ask({"token": None}, [("host", HERE)], "websocket").reached


def test_an_address_with_the_token_leads_to_the_same_one_without_it() -> None:
    for target, wanted in (
        (f"/?token={TOKEN}", "/"),
        (f"/layers?token={TOKEN}&rank=0", "/layers?rank=0"),
        (f"/layers?rank=0&token={TOKEN}&a=%20b+c&a=2", "/layers?rank=0&a=%20b+c&a=2"),
        (f"/?token=wrong&token={TOKEN}&%74oken=x", "/"),
        (f"/?%74oken={TOKEN}", "/"),
        (f"/?token={TOKEN}&tokens=1", "/?tokens=1"),
        (f"//evil.example/?token={TOKEN}", "/evil.example/"),
        (f"///evil.example?token={TOKEN}", "/evil.example"),
        (f"/\\evil.example?token={TOKEN}", "/evil.example"),
        (f"/\\/evil.example?token={TOKEN}", "/evil.example"),
        (f"/%5cevil.example?token={TOKEN}", "/%5cevil.example"),
        (f"/\t/evil.example?token={TOKEN}", "/%09/evil.example"),
        (f"/%0d%0aset-cookie:%20a?token={TOKEN}&b=\r\nc", "/%0d%0aset-cookie:%20a?b=%0D%0Ac"),
        (f'/<">?token={TOKEN}', "/%3C%22%3E"),
    ):
        answer = ask({"token": TOKEN}, [("host", HERE)], target=target)
        assert (answer.reached, answer.status, answer.text) == (False, 303, ""), target
        assert answer.header(b"location") == wanted
        assert answer.header(b"cache-control") == "no-store"
        given = answer.header(b"set-cookie")
        assert given.endswith("; Path=/; HttpOnly; SameSite=Lax"), given
    for target in ("/?token=", "/?token", "/?token=wrong", "/?x=token", f"/?tokenx={TOKEN}"):
        answer = ask({"token": TOKEN}, [("host", HERE)], target=target)
        assert (answer.status, answer.header(b"set-cookie")) == (403, ""), target
        assert "open the address that spark-prof printed" in answer.text
    for host in ("evil.example", "localhost."):
        assert ask({"token": TOKEN}, [("host", host)], target=f"/?token={TOKEN}").status == 403
    # Whoever is known anyway is not kept out by an old address, nor where there is no token.
    known = [("host", HERE), ("authorization", f"token {TOKEN}")]
    for token in (TOKEN, None):
        answer = ask({"token": token}, known, target="/a?token=old&b=1")
        assert (answer.status, answer.header(b"location")) == (303, "/a?b=1")
        assert not answer.header(b"set-cookie")


def test_each_port_that_a_browser_sees_has_a_cookie_of_its_own() -> None:
    guard = Access(None, token=TOKEN)  # type: ignore[arg-type]
    for host, port in ((HERE, 8501), ("localhost:9", 9), ("localhost", 80), ("[::1]:77", 77)):
        name, value = cookie(guard, host)
        assert value.startswith(f"spark-prof-{port}=")
        assert ask(guard, [("host", host), (name, value)]).reached


def test_a_ticket_is_taken_once_and_only_from_this_user(monkeypatch: pytest.MonkeyPatch) -> None:
    guard = Access(None, token=TOKEN)  # type: ignore[arg-type]
    assert ask(guard, [("host", HERE)], target="/?ticket=").status == 403
    with (
        socket.create_server(("127.0.0.1", 0)) as listening,
        socket.create_connection(listening.getsockname()) as asking,
    ):
        ends = {"client": asking.getsockname(), "server": listening.getsockname()}

        def status(ticket: str, **others: Any) -> int:
            target = f"/layers?ticket={ticket}&rank=0"
            answer = ask(guard, [("host", HERE)], target=target, **{**ends, **others})
            if answer.status == 303:
                assert answer.header(b"location") == "/layers?rank=0"
                assert "HttpOnly" in answer.header(b"set-cookie")
            return answer.status

        assert [status(ticket) for ticket in [guard.ticket()] * 2] == [303, 403]
        first, second = guard.ticket(), guard.ticket()
        assert [status(first), status(second)] == [403, 303]
        late = guard.ticket()
        with monkeypatch.context() as patched:
            now = time.monotonic()
            patched.setattr(time, "monotonic", lambda: now + 61)
            assert status(late) == 403
        # Another user's process, or none of this machine, does not use it up either.
        ticket = guard.ticket()
        with monkeypatch.context() as patched:
            patched.setattr(access.os, "getuid", lambda: 4242)
            assert status(ticket) == 403
        assert status(ticket, client=("192.0.2.1", 5)) == 403
        assert status(ticket) == 303


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="this machine has no IPv6")
def test_a_ticket_is_taken_over_ipv6_too() -> None:
    guard = Access(None, token=TOKEN)  # type: ignore[arg-type]
    with (
        socket.create_server(("::1", 0), family=socket.AF_INET6) as listening,
        socket.create_connection(listening.getsockname()[:2]) as asking,
    ):
        ends = asking.getsockname()[:2], listening.getsockname()[:2]
        answer = ask(
            guard, [("host", HERE)], target=f"/?ticket={guard.ticket()}",
            client=ends[0], server=ends[1],
        )  # fmt: skip
        assert answer.status == 303


def test_no_answer_can_be_read_or_framed_by_others() -> None:
    known = ("authorization", f"token {TOKEN}")
    for headers in ([("host", HERE), known], [("host", HERE)], [("host", "evil.example")]):
        answer = ask({"token": TOKEN}, headers)
        assert not any(name.lower().startswith(b"access-control") for name, _ in answer.headers)
        assert answer.header(b"x-frame-options") == "SAMEORIGIN"
        assert answer.header(b"x-content-type-options") == "nosniff"
        assert answer.header(b"referrer-policy") == "same-origin"
        assert "frame-ancestors 'self'" in answer.header(b"content-security-policy")
        assert ("default-src 'self'" in answer.header(b"content-security-policy")) is answer.reached


def test_the_lifespan_passes_through() -> None:
    seen = []

    async def application(scope: Any, receive: Any, send: Any) -> None:
        seen.append((scope, receive, send))

    scope = {"type": "lifespan"}
    asyncio.run(Access(application, token=TOKEN)(scope, 1, 2))  # type: ignore[arg-type]
    assert seen == [(scope, 1, 2)]


def test_tokens_are_of_their_own_and_names_are_names() -> None:
    assert len({new_token() for _ in range(100)}) == 100
    assert min(len(new_token()) for _ in range(100)) >= 32
    for name, wanted in (
        ("Box.Example", "box.example"), ("::1", "::1"), ("[::1]", "::1"), ("10.0.0.1", "10.0.0.1"),
        ("fe80::1%eth0", "fe80::1"), ("http://a", None), ("a:80", None), ("*", None), ("", None),
        ("a b", None), ("a.", None), ("*.a", None), ("ö", None), ("a/b", None),
    ):  # fmt: skip
        assert canonical_name(name) == wanted, name

"""Who is let in by a running server, byte by byte: what HTTP clients would not send as well."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import psutil
import pytest

from spark_prof.explorer import server
from tests.explorer.test_server import BUNDLE, running, url_of

TOKEN = "of-this-start_1"
_UPGRADE = (
    "Upgrade: websocket", "Connection: Upgrade", "Sec-WebSocket-Version: 13",
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==", "Sec-WebSocket-Protocol: streamlit",
)  # fmt: skip
_ROUTES = """
import sys
import streamlit as st
from streamlit.web.server.starlette.starlette_app import create_streamlit_routes
app = st.App(sys.argv[1])
app.lifespan()
for route in create_streamlit_routes(app._runtime):
    print(route.path or "/", *(getattr(route, "methods", None) or ()))
"""


def raw(port: int, line: str, *headers: str) -> tuple[int, str]:
    """The status that a request is answered with, and what comes with it."""
    with socket.create_connection(("127.0.0.1", port), 30) as connection:
        sent = "\r\n".join([line, *headers, "", ""])
        connection.sendall(sent.encode("latin-1"))
        got = b""
        while b"\r\n\r\n" not in got and (part := connection.recv(1 << 16)):
            got += part
        text = got.decode("latin-1")
        if found := re.search(r"content-length: (\d+)", text, re.IGNORECASE):
            whole = text.index("\r\n\r\n") + 4 + int(found[1])
            while len(got) < whole and (part := connection.recv(1 << 16)):
                got += part
    return int(text.split()[1]), got.decode("latin-1")


@pytest.fixture(scope="module")
def explorer() -> Iterator[int]:
    """The port of the explorer itself."""
    with ExitStack() as stack:
        with pytest.MonkeyPatch.context() as patched:
            patched.setenv("SPARK_PROF_TOKEN", TOKEN)
            process = stack.enter_context(running(BUNDLE, "--no-open"))
        url = url_of(process)
        assert url.endswith(f"/?token={TOKEN}")
        yield int(re.findall(r":(\d+)/", url)[0])


def test_what_an_http_client_would_not_send(explorer: int) -> None:
    key, own = f"Authorization: Bearer {TOKEN}", f"Host: localhost:{explorer}"
    get = "GET /_stcore/health HTTP/1.1"
    assert raw(explorer, get, own, key)[0] == 200
    assert raw(explorer, get, f"HOST:127.0.0.1:{explorer}  ", key)[0] == 200
    assert raw(explorer, get.replace("1.1", "1.0"), own, key)[0] == 200
    forms = (
        ("no host", get, ()), ("none in 1.0", get.replace("1.1", "1.0"), ()),
        ("two", get, (own, "Host: evil.example")), ("two alike", get, (own, own)),
        ("not ASCII", get, (f"Host: localh\xf6st:{explorer}",)),
        ("folded", get, ("Host: evil.example", f" localhost:{explorer}")),
        ("forwarded", get, ("Host: evil.example", f"X-Forwarded-Host: localhost:{explorer}")),
        ("target of another", "GET http://evil.example/ HTTP/1.1", ("Host: evil.example",)),
        ("foreign origin", get, (own, "Origin: http://evil.example")),
    )  # fmt: skip
    for name, line, headers in forms:
        status, text = raw(explorer, line, *headers, key)
        assert status in (400, 403), (name, text)
        assert "<" not in text.partition("\r\n\r\n")[2]
    _, answer = raw(explorer, f"GET /?token={TOKEN} HTTP/1.1", own)
    cookie = f"Cookie: {re.findall(r'set-cookie: (spark-prof-[0-9]+=[a-z0-9]+)', answer)[0]}"
    stream, origin = "GET /_stcore/stream HTTP/1.1", f"Origin: http://localhost:{explorer}"
    for let_in, headers in (
        (True, (own, origin, cookie)), (True, (own, origin, key)), (False, (own, origin)),
        (False, (own, "Origin: http://evil.example", cookie)), (False, (origin, cookie)),
        (False, ("Host: evil.example", "Origin: http://evil.example", cookie)),
        (False, (own, own, origin, cookie)),
    ):  # fmt: skip
        assert (raw(explorer, stream, *headers, *_UPGRADE)[0] == 101) is let_in, headers
    for target in (f"//evil.example?token={TOKEN}", f"/%0d%0aa:%20b?token={TOKEN}"):
        status, answer = raw(explorer, f"GET {target} HTTP/1.1", own)
        location = re.findall(r"location: (.*)\r\n", answer)
        assert status == 303
        assert re.fullmatch(r"/[^/\\].*", location[0]), answer


def test_no_path_of_the_explorer_answers_without_a_cookie(explorer: int) -> None:
    script = server.__file__.replace("server.py", "script/explorer.py")
    listed = subprocess.run(
        [sys.executable, "-c", _ROUTES, script], capture_output=True, text=True, timeout=120,
        check=True,
    ).stdout.splitlines()  # fmt: skip
    paths = {re.sub(r"{[^}]*}", "x", line.split()[0]) for line in listed}
    assert {"/_stcore/health", "/_stcore/stream", "/media/x", "/"} <= paths
    files = Path(sys.modules["uvicorn"].__file__ or "").parents[1] / "streamlit" / "static"
    paths |= {f"/{file.relative_to(files)}" for file in files.rglob("*") if file.is_file()}
    paths |= {"/overview", "/layers", "/static/x", "/no/such", "/%2e%2e/x", "//x", "/?source=0"}
    paths |= {"/perfetto/index.html", "/perfetto/x", "/perfetto-trace/x.json"}
    assert len(paths) > 50
    methods = ("GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE")
    host = f"Host: 127.0.0.1:{explorer}"
    for path in sorted(paths):
        for method in methods if "static" not in path else ("GET",):
            status, text = raw(explorer, f"{method} {path} HTTP/1.1", host, "Connection: close")
            assert status == 403, (method, path, text)
        assert raw(explorer, f"GET {path} HTTP/1.1", host, *_UPGRADE)[0] == 403, path


@pytest.mark.slow
def test_others_of_this_machine_see_no_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened, browser = tmp_path / "opened", tmp_path / "browser"
    browser.write_text(f'#!/bin/sh\necho "$@" > {opened}.part; mv {opened}.part {opened}\n')
    browser.chmod(0o700)
    monkeypatch.setenv("BROWSER", str(browser))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with running(BUNDLE, "--open") as process:
        address = url_of(process)
        token = address.partition("?token=")[2]
        assert len(token) >= 32
        end = time.monotonic() + 60
        while not opened.exists():
            assert time.monotonic() < end
            time.sleep(0.02)
        port = int(re.findall(r":(\d+)/", address)[0])
        own = psutil.Process(process.pid)
        for one in (own, *own.children(recursive=True)):
            with suppress(psutil.Error):  # it has ended
                assert token not in " ".join(one.cmdline())
        url = opened.read_text().strip()
        assert token not in url
        assert url.startswith(address.partition("?")[0])
        target = f"GET /{url.rpartition('/')[2]} HTTP/1.1"
        statuses = [raw(port, target, f"Host: 127.0.0.1:{port}") for _ in range(2)]
        assert [status for status, _ in statuses] == [303, 403]
        cookie = re.findall(r"set-cookie: (spark-prof-\d+=\w+)", statuses[0][1])[0]
        line = "GET /_stcore/health HTTP/1.1"
        assert raw(port, line, f"Host: 127.0.0.1:{port}", f"Cookie: {cookie}")[0] == 200
    for file in tmp_path.rglob("*"):
        assert not file.is_file() or token.encode() not in file.read_bytes(), file

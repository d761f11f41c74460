"""Listens on a port before the server is started, so that a taken one is one line."""

from __future__ import annotations

import errno
import ipaddress
import os
import socket

from spark_prof.errors import CommandError

DEFAULT_PORT = 8501
_TRIED = 50
_WAITING = 128
"""Connections that the system keeps until the server takes them."""


def listen(host: str, port: int | None) -> socket.socket:
    """A socket that listens on a port, or on the first free one from `DEFAULT_PORT` on if None.

    Whoever is to serve there gets this very socket: a port that was only looked at may be taken by
    then, by another explorer that has looked at the same time.

    Raises:
        CommandError: it is taken or not allowed, none is free, or the host is none of this machine.
    """
    if port is not None:
        if found := _listen(host, port):
            return found
        raise CommandError(f"port {port} of {host} is taken; give another --port, or none")
    for tried in range(DEFAULT_PORT, DEFAULT_PORT + _TRIED):
        if found := _listen(host, tried):
            return found
    last = DEFAULT_PORT + _TRIED - 1
    raise CommandError(f"ports {DEFAULT_PORT} to {last} of {host} are taken; give a --port")


def _listen(host: str, port: int) -> socket.socket | None:
    """A socket that listens there; None where somebody else does."""
    made: socket.socket | None = None
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        made = socket.socket(family, kind, protocol)
        if os.name == "posix":
            # Else what an ended server left behind would look like one that runs.
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        made.bind(address)
        # Two may have bound it: only one of them can listen.
        made.listen(_WAITING)
    except (OSError, UnicodeError) as error:
        if made is not None:
            made.close()
        number = getattr(error, "errno", None)
        if number == errno.EADDRINUSE:
            return None
        if number == errno.EACCES:
            raise CommandError(f"port {port} needs more rights; give a --port above 1023") from None
        raise CommandError(
            f"cannot listen on {host} ({getattr(error, 'strerror', None) or error}); "
            "give a --host of this machine"
        ) from None
    return made


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches that address."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def address_in_url(host: str) -> str:
    """The host as an address names it; one that stands for all addresses is this machine's own."""
    if host in ("0.0.0.0", "::"):
        return "127.0.0.1" if host == "0.0.0.0" else "[::1]"
    return f"[{host}]" if ":" in host else host

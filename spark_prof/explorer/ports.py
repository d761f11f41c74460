"""Finds the port to listen on before the server is started, so that a taken one is one line."""

from __future__ import annotations

import errno
import ipaddress
import socket

from spark_prof.errors import CommandError

__all__ = ["DEFAULT_PORT", "address_in_url", "find_port", "is_loopback"]

DEFAULT_PORT = 8501
_TRIED = 50


def find_port(host: str, port: int | None) -> int:
    """The port that was asked for, or the first free one from `DEFAULT_PORT` on if None.

    Raises:
        CommandError: it is taken or not allowed, none is free, or the host is none of this machine.
    """
    if port is not None:
        if not _is_free(host, port):
            raise CommandError(f"port {port} of {host} is taken; give another --port, or none")
        return port
    for tried in range(DEFAULT_PORT, DEFAULT_PORT + _TRIED):
        if _is_free(host, tried):
            return tried
    last = DEFAULT_PORT + _TRIED - 1
    raise CommandError(f"ports {DEFAULT_PORT} to {last} of {host} are taken; give a --port")


def _is_free(host: str, port: int) -> bool:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with socket.socket(family, kind, protocol) as tried:
            # As servers do, or what an ended one left behind would look like one that runs.
            tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            tried.bind(address)
            tried.listen(1)
    except (OSError, UnicodeError) as error:
        number = getattr(error, "errno", None)
        if number == errno.EADDRINUSE:
            return False
        if number == errno.EACCES:
            raise CommandError(f"port {port} needs more rights; give a --port above 1023") from None
        raise CommandError(
            f"cannot listen on {host} ({getattr(error, 'strerror', None) or error}); "
            "give a --host of this machine"
        ) from None
    return True


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

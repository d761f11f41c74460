"""The connection over which messages go, one line of JSON each."""

from __future__ import annotations

import socket

import msgspec

from spark_prof.errors import CommandError

_LONGEST = 64 << 20
_PIECE = 1 << 16


class Channel:
    """One end of the connection, over a Unix socket.

    Args:
        connection: the socket, which this owns from now on.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._rest = bytearray()

    def send(self, message: msgspec.Struct) -> None:
        """Sends one message.

        Raises:
            OSError: nobody listens any more.
        """
        self._socket.settimeout(None)
        self._socket.sendall(msgspec.json.encode(message) + b"\n")

    def line(self, seconds: float | None) -> bytes | None:
        """The next message as it came; None when it has not come in that time.

        Raises:
            EOFError: the other end has closed.
            CommandError: the line is longer than any message.
        """
        self._socket.settimeout(seconds)
        seen = 0
        while (end := self._rest.find(b"\n", seen)) < 0:
            seen = len(self._rest)
            try:
                piece = self._socket.recv(_PIECE)
            except TimeoutError:
                return None
            except OSError as error:
                raise EOFError from error
            if not piece:
                raise EOFError
            self._rest += piece
            if len(self._rest) > _LONGEST:
                raise CommandError(f"a message of more than {_LONGEST >> 20} MiB came; stopped")
        line = bytes(self._rest[:end])
        del self._rest[: end + 1]
        return line

    def close(self) -> None:
        """Closes this end."""
        self._socket.close()

"""Cuts a stream of Kineto JSON between events, so that it can be decoded a block at a time.

The text is an object whose `traceEvents` is the list of events, with other keys before and after
it, or the bare list (Chrome's trace event format knows both).
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any, TypeVar

import msgspec

Decoded = TypeVar("Decoded")

_LIST = re.compile(rb'"traceEvents"\s*:\s*\[')
_BORDER = re.compile(
    rb'(?<=\})\s*,\s*(?=\{\s*"(?:ph|cat|name|pid|tid|ts|dur|id|args|s|bp)"\s*:)', re.ASCII
)
"""What separates two events. No text of JSON holds it, as a quote within a text is escaped."""

_BRACKET = re.compile(rb'(?:[^"{}\[\],]++|"(?:[^"\\]++|\\.)*+")*+([{}\[\],])', re.DOTALL)

_NEAR = 1 << 13
_LARGEST_EVENT = 16 << 20
_LARGEST = 64 << 20
"""An event, or what stands before or after the events, that is larger than this is damage."""


class TraceText:
    """The text of one trace.

    Attributes:
        bare: whether it is a list of events with nothing around it.
    """

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks = chunks
        self._before = b""
        self.bare = False
        self._after = b""

    def events(self, decode: Callable[[bytes], Decoded]) -> Iterator[Decoded]:
        """Yields what `decode` makes of each block of whole events, given as a JSON list.

        Args:
            decode: raises ValueError or RecursionError where the block is no JSON.

        Raises:
            ValueError: the text ends early, or is no list of events.
        """
        text = self._to_events()
        enough = 0
        for chunk in chain([b""], self._chunks):
            text += chunk
            border = _last_border(text) if len(text) >= enough else None
            if border:
                try:
                    decoded = decode(b"[" + text[: border[0]] + b"]")
                except (ValueError, RecursionError):
                    # The border is inside an event, or the list ends before it.
                    pass
                else:
                    text = text[border[1] :]
                    yield decoded
                    continue
                end, closed = _whole_events(text)
                # A long event is looked at again when twice as much is there, not at each chunk.
                enough = 0 if end else 2 * len(text)
                if end or closed:
                    yield decode(b"[" + text[:end] + b"]")
                text = text[end + closed :] if closed else text[end:].removeprefix(b",")
                if closed:
                    self._finish(text)
                    return
            if len(text) > _LARGEST_EVENT:
                raise ValueError("it has an event of more than 16 MiB")
        end, closed = _whole_events(text)
        if not closed:
            raise ValueError("it ends before its list of events does")
        yield decode(b"[" + text[:end] + b"]")
        self._finish(text[end + 1 :])

    def around(self) -> dict[str, Any]:
        """The other keys of the trace, once its events have been read; none of a bare list.

        Raises:
            ValueError: they are no JSON.
        """
        if self.bare:
            if self._after.strip():
                raise ValueError("something follows its list of events")
            return {}
        found = msgspec.json.decode(self._before + b"]" + self._after)
        if not isinstance(found, dict) or found.pop("traceEvents", None) != []:
            raise ValueError("its traceEvents is not at the top")
        return found

    def _to_events(self) -> bytes:
        """Reads up to the first event; returns what has been read of the events."""
        text = b""
        for chunk in self._chunks:
            text = (text + chunk).lstrip(b"\xef\xbb\xbf \t\r\n") if not text else text + chunk
            if text.startswith(b"["):
                self.bare = True
                return text[1:]
            if text and not text.startswith(b"{"):
                break
            found = _LIST.search(text, max(0, len(text) - len(chunk) - 64))
            if found:
                self._before = text[: found.end()]
                return text[found.end() :]
            if len(text) > _LARGEST:
                break
        raise ValueError("it has no list of traceEvents")

    def _finish(self, text: bytes) -> None:
        parts = [text]
        size = len(text)
        for chunk in self._chunks:
            size += len(chunk)
            if size > _LARGEST:
                raise ValueError("more than 64 MiB follow its events")
            parts.append(chunk)
        self._after = b"".join(parts)


def _last_border(text: bytes) -> tuple[int, int] | None:
    """Where the last border between two events begins and ends."""
    for start in (max(0, len(text) - _NEAR), max(0, len(text) - 16 * _NEAR), 0):
        borders = deque(_BORDER.finditer(text, start), maxlen=1)
        if borders:
            return borders[0].span()
    return None


def _whole_events(text: bytes) -> tuple[int, bool]:
    """How far whole events reach, and whether the list of events ends there."""
    depth = end = 0
    position = 0
    while found := _BRACKET.match(text, position):
        position, bracket = found.end(), found.group(1)
        if bracket in b"{[":
            depth += 1
        elif bracket == b",":
            end = end if depth else found.start(1)
        elif depth == 0:
            return found.start(1), True
        else:
            depth -= 1
    return end, False

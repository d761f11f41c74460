"""Reads a Kineto trace from end to end, keeping what somebody may ask for.

Categories: libkineto's ActivityType.h, and those of 2021, which began with capitals. Python frames
are most of a trace and are left out, but for the calls of modules.

The text is an object whose `traceEvents` is the list of events, with other keys before and after
it, or the bare list (Chrome's trace event format knows both). It is cut between events, so that it
can be decoded a block at a time.
"""

from __future__ import annotations

import re
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass, field
from decimal import Decimal
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from spark_prof.arrays import Flags
from spark_prof.errors import CommandError
from spark_prof.traces.compressed import open_stream
from spark_prof.traces.readers.kineto_events import (
    Event,
    EventColumns,
    EventDecoder,
    GpuArguments,
    GpuRows,
    HostRows,
    InexactTimesError,
    Numbered,
    decode_arguments,
    plain_text,
)

Decoded = TypeVar("Decoded")

_LIST = re.compile(rb'"traceEvents"\s*:\s*\[')
_BORDER = re.compile(
    rb'(?<=\})\s*,\s*(?=\{\s*"(?:ph|cat|name|pid|tid|ts|dur|id|args|s|bp)"\s*:)', re.ASCII
)
"""What separates two events. No text of JSON holds it, as a quote within a text is escaped."""

_BRACKET = re.compile(rb'(?>(?:[^"{}\[\],]++|"(?>(?:[^"\\]++|\\.)*)")*)([{}\[\],])', re.DOTALL)

_NEAR = 1 << 13
_LARGEST_EVENT = 16 << 20
_LARGEST = 64 << 20
"""An event, or what stands before or after the events, that is larger than this is damage."""


class TraceText:
    """The text of one trace."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks = chunks
        self._before = b""
        self.bare = False
        self._after = b""

    def events(self, decode: Callable[[bytes], Decoded]) -> Iterator[Decoded]:
        """Yields what `decode` makes of each block of whole events, given as a JSON list."""
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
        """The other keys of the trace, once its events have been read; none of a bare list."""
        if self.bare:
            if self._after.strip():
                raise ValueError("something follows its list of events")
            return {}
        document = msgspec.json.decode(self._before + b"]" + self._after)
        if not isinstance(document, dict) or document.pop("traceEvents", None) != []:
            raise ValueError("its traceEvents is not at the top")
        return document

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
            match = _LIST.search(text, max(0, len(text) - len(chunk) - 64))
            if match:
                self._before = text[: match.end()]
                return text[match.end() :]
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
    while match := _BRACKET.match(text, position):
        position, bracket = match.end(), match.group(1)
        if bracket in b"{[":
            depth += 1
        elif bracket == b",":
            end = end if depth else match.start(1)
        elif depth == 0:
            return match.start(1), True
        else:
            depth -= 1
    return end, False


GPU_KINDS = {
    "kernel": "kernel", "gpu_memcpy": "memcpy", "gpu_memset": "memset",
    "Kernel": "kernel", "Memcpy": "memcpy", "Memset": "memset",
}  # fmt: skip
"""What the categories of work on a GPU are called in a bundle."""

DRIVER = "cuda_driver"
_API = ("cuda_runtime", DRIVER, "hip_runtime", "Runtime")
_OPERATORS = ("cpu_op", "Operator")
_FRAMES = "python_function"
_MODULE = "nn.Module: "
_KINDS = ("gpu", "api", "operators", "annotations", "frames", "overhead")
"""Of rows, as attributes of `Collected`."""

_LATEST_NS = 1 << 61


@dataclass
class Collected:
    """The events of one trace by what they are."""

    # The names and categories that rows give the number of.
    names: Numbered = field(default_factory=Numbered)
    threads: Numbered = field(default_factory=Numbered)
    texts: list[str] = field(default_factory=list)  # what the numbers of names stand for
    base_ns: int = 0  # what times count from, ns since the epoch
    around: dict[str, Any] = field(default_factory=dict)  # what the trace says beside its events
    bare: bool = False  # whether it is a list of events with nothing around it
    categories: Counter[str] = field(default_factory=Counter)  # how many events of each
    processes: dict[int | str, str] = field(default_factory=dict)  # the names that they were given
    unmatched: int = 0  # begins without an end, and ends without a begin
    damaged: int = 0
    repaired: bool = False  # whether the file is not strictly JSON

    def __post_init__(self) -> None:
        self.gpu = GpuRows(self.names, self.threads)
        self.api = HostRows(self.names, self.threads)
        self.operators = HostRows(self.names, self.threads)
        self.annotations = EventColumns(self.names, self.threads)
        self.frames = EventColumns(self.names, self.threads)
        self.overhead = EventColumns(self.names, self.threads)

    def of_threads(self, threads: Flags) -> Collected:
        """The events of the chosen threads, by their number."""
        part = copy(self)
        for kind in _KINDS:
            setattr(part, kind, getattr(self, kind).of_threads(threads))
        return part

    @property
    def dropped(self) -> int:
        """Events that cannot be used."""
        kinds: list[EventColumns] = [getattr(self, kind) for kind in _KINDS]
        return self.damaged + sum(rows.dropped for rows in kinds)


def collect(path: Path, is_module: Callable[[str], bool]) -> Collected:
    """Reads a trace, plain or compressed, in one pass."""
    return collect_all([path], is_module)


def collect_all(paths: Sequence[Path], is_module: Callable[[str], bool]) -> Collected:
    """Reads traces of one process as if they were one.

    Raises:
        CommandError: one is damaged, or their times count from different moments.
    """
    try:
        return _collect_all(paths, is_module, exact=False)
    except InexactTimesError:
        return _collect_all(paths, is_module, exact=True)


def _collect_all(paths: Sequence[Path], is_module: Callable[[str], bool], exact: bool) -> Collected:
    kineto = Collected()
    bases = set()
    for path in paths:
        _collect(kineto, path, is_module, exact)
        bases.add(kineto.base_ns)
    if len(bases) > 1:
        raise CommandError(f"the times of {paths[0]} and the next do not count from one moment")
    kineto.texts = [plain_text(name) for name in kineto.names]
    return kineto


def _collect(kineto: Collected, path: Path, is_module: Callable[[str], bool], exact: bool) -> None:
    decode = EventDecoder(exact)
    sorter = _Sorter(kineto, is_module)
    events = 0
    try:
        with open_stream(path) as chunks:
            text = TraceText(chunks)
            for block in text.events(decode):
                events += len(block)
                sorter.add(block)
            kineto.around, kineto.bare = text.around(), text.bare
        kineto.base_ns = int(kineto.around.get("baseTimeNanoseconds", 0))
        if abs(kineto.base_ns) > _LATEST_NS:
            raise ValueError("its base time is none")
        if kineto.bare and not events:
            raise ValueError("it holds no event")
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        reason = str(error).replace("\n", " ")
        raise CommandError(f"{path} is not a whole Kineto trace ({reason})") from error
    kineto.unmatched += sorter.still_open()
    kineto.damaged += decode.damaged
    kineto.repaired |= decode.repaired > 0


class _Sorter:
    """Hands events to the rows of their kind."""

    def __init__(self, kineto: Collected, is_module: Callable[[str], bool]) -> None:
        self._kineto, self._is_module = kineto, cache(is_module)
        self._open: dict[tuple[int | str, int | str], list[Event]] = {}
        self._rows: dict[str, EventColumns] = {
            **dict.fromkeys(GPU_KINDS, kineto.gpu), **dict.fromkeys(_API, kineto.api),
            **dict.fromkeys(_OPERATORS, kineto.operators), _FRAMES: kineto.frames,
            "user_annotation": kineto.annotations, "overhead": kineto.overhead,
        }  # fmt: skip

    def add(self, events: Sequence[Event]) -> None:
        """Adds a block of events in the order of the file."""
        self._kineto.categories.update([event.cat for event in events])
        by_category: dict[str, list[Event]] = {category: [] for category in self._rows}
        for event in events:
            if event.ph == "X":
                if (same_category := by_category.get(event.cat)) is not None:
                    same_category.append(event)
            elif event.ph == "B" or event.ph == "E":
                whole = self._pair(event)
                if whole and whole.cat in by_category:
                    by_category[whole.cat].append(whole)
            elif event.ph == "M" and event.name == "process_name":
                [arguments] = decode_arguments([event], GpuArguments)
                self._kineto.processes[event.pid] = arguments.marked
        is_module = self._is_module
        by_category[_FRAMES] = [
            e for e in by_category[_FRAMES] if e.name.startswith(_MODULE) and is_module(e.name)
        ]
        for category, chosen in by_category.items():
            if chosen:
                self._rows[category].add(chosen)

    def still_open(self) -> int:
        """How many begins have met no end."""
        return sum(map(len, self._open.values()))

    def _pair(self, event: Event) -> Event | None:
        """The whole event that ends here: within a thread, begins and ends are in order."""
        stack = self._open.setdefault((event.pid, event.tid), [])
        if event.ph == "B":
            stack.append(event)
            return None
        if not stack:
            self._kineto.unmatched += 1
            return None
        begin = stack.pop()
        try:
            begin.dur = Decimal(str(event.ts)) - Decimal(str(begin.ts))
        except ArithmeticError:  # a time is no number
            begin.dur = None
        return begin

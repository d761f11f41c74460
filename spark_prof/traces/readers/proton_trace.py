"""Reads the Chrome traces that Triton's profiler Proton writes (`data="trace"`).

Format: third_party/proton/csrc/lib/Data/TraceData.cpp of triton-lang/triton. Times are
microseconds since the first event; a kernel's `tid` is its stream, its `args.call_stack` the call
path from ROOT to itself. Until Triton 3.5 there is one document a line, one for each stream; later
there is one document, with the ranges of CPU threads and arrows from launches to kernels.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt
import pandas as pd

from spark_prof.errors import CommandError
from spark_prof.traces.foreign import (
    CALL_COLUMNS,
    Foreign,
    NamesModule,
    Process,
    Window,
    gpu_frame,
    window,
)
from spark_prof.traces.readers.proton_tree import FORMAT, ROOT, OwnWork, read_whole, scope_of
from spark_prof.traces.scopes import NO_SCOPE, Scopes

_LATEST_NS = 1 << 62
_MOST_BYTES = 512 << 20
_STREAM = re.compile(r"Stream (\d{1,18})$")
_DEVICE = re.compile(r"\b(?:GPU|Device) (\d{1,4})\b")
_NO_LAUNCH = (-1, -1)


class Event(msgspec.Struct, gc=False):
    """An event of the trace; `args` is decoded once for all events that have the same."""

    ph: str = ""
    cat: str = ""
    name: str = ""
    ts: float = 0.0
    dur: float = 0.0
    tid: int | str = 0
    id: int = -1
    args: msgspec.Raw = msgspec.Raw(b"{}")

    @property
    def start_ns(self) -> int:
        """When it begins."""
        return round(self.ts * 1000)

    @property
    def end_ns(self) -> int:
        """When it ends."""
        return self.start_ns + round(self.dur * 1000)

    @property
    def track(self) -> int:
        """Its stream or thread, -1 where that is no number."""
        return self.tid if isinstance(self.tid, int) else -1


class Arguments(msgspec.Struct):
    """What is read of an event's `args`."""

    call_stack: list[str] = []
    name: str = ""


class Document(msgspec.Struct):
    """A trace, or a stream's part of one."""

    traceEvents: list[Event]  # noqa: N815 - the format's name


@dataclass(frozen=True)
class Paths:
    """The call paths of events, each decoded and placed once."""

    scopes: Scopes
    names_module: NamesModule
    _known: dict[bytes, tuple[tuple[str, ...], int]]

    def of(self, event: Event) -> tuple[tuple[str, ...], int]:
        """The names around and with the event, and the scope of those around it."""
        raw = bytes(event.args)
        if raw not in self._known:
            stack = msgspec.json.decode(raw, type=Arguments).call_stack
            path = tuple(stack[1:] if stack[:1] == [ROOT] else stack)
            self._known[raw] = path, scope_of(path[:-1], self.scopes, self.names_module)
        return self._known[raw]


def proton_trace(path: Path, names_module: NamesModule) -> Foreign:
    """Reads a trace, plain or compressed.

    Raises:
        CommandError: it is no whole trace, or holds no kernel.
    """
    try:
        return _read(path, names_module)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, OverflowError) as error:
        raise CommandError(f"{path} is not a whole trace of Proton ({error})") from error


def _read(path: Path, names_module: NamesModule) -> Foreign:
    events = _events(path)
    timed = [e for e in events if e.ph == "X" and _in_time(e)]
    kernels = [e for e in timed if e.cat == "kernel"]
    if not kernels:
        raise CommandError(
            f"{path} holds no kernels; record with Proton's backend cupti or roctracer, not with "
            "its instrumentation, which looks inside kernels"
        )
    process = Process(None, {"tool": "proton", "execution": "unknown"})
    paths, own = Paths(process.scopes, names_module, {}), OwnWork()
    kernels = [
        e for e in kernels if not own.takes((*paths.of(e)[0], e.name), 1, e.end_ns - e.start_ns)
    ]
    kernels.sort(key=lambda event: event.start_ns)
    lost = ["grids, registers and copies' sizes are no part of the format", *own.lost()]
    if dropped := sum(e.ph == "X" for e in events) - len(timed):
        lost.append(f"{dropped} events have no usable time and were left out")
    launched = [_NO_LAUNCH if found is None else found for found in _launches(events, kernels)]
    if unknown := launched.count(_NO_LAUNCH):
        lost.append(f"{unknown} kernels do not tell when they were launched")
    ranges = [e for e in timed if e.cat in ("scope", "metric") and paths.of(e)[0]]
    found = _window(events, kernels, ranges, launched, paths)
    return Foreign(FORMAT, [process], iter([found]), lost)


def _events(path: Path) -> list[Event]:
    """The events of all documents of the file."""
    data = read_whole(path, _MOST_BYTES)
    decoder = msgspec.json.Decoder(Document)
    try:
        return decoder.decode(data).traceEvents
    except msgspec.DecodeError:
        documents = (decoder.decode(line) for line in data.splitlines() if line.strip())
        return [event for document in documents for event in document.traceEvents]


def _in_time(event: Event) -> bool:
    return abs(event.ts) < _LATEST_NS / 1000 and 0 <= event.dur < _LATEST_NS / 1000


def _launches(
    events: Sequence[Event], kernels: Sequence[Event]
) -> Iterator[tuple[int, int] | None]:
    """When and by which thread each kernel was launched, from the arrows; None without one."""
    begins = {e.id: e for e in events if e.ph == "s" and _in_time(e)}
    arrows = {(e.tid, e.start_ns): e.id for e in events if e.ph == "f" and _in_time(e)}
    for kernel in kernels:
        begin = begins.get(arrows.get((kernel.tid, kernel.start_ns), -1))
        yield (begin.start_ns, begin.track) if begin else None


def _window(
    events: Sequence[Event],
    kernels: list[Event],
    ranges: list[Event],
    launched: list[tuple[int, int]],
    paths: Paths,
) -> Window:
    places = _places(events)
    gpu = gpu_frame(
        start_ns=_column(e.start_ns for e in kernels),
        end_ns=_column(e.end_ns for e in kernels),
        name=[e.name for e in kernels],
        device=[places.get(e.tid, (0, e.track))[0] for e in kernels],
        stream=[places.get(e.tid, (0, e.track))[1] for e in kernels],
    )
    times = [(e.start_ns, e.end_ns, e.track) for e in ranges]
    markers = pd.DataFrame(times, columns=["start_ns", "end_ns", "thread"])
    markers.insert(0, "name", [e.name for e in ranges])
    markers.insert(1, "domain", "")
    scope = [_own_scope(e, paths) for e in ranges]
    calls = markers.assign(scope=np.array(scope, np.int64))
    return window(
        0,
        gpu,
        markers=markers,
        launch_ns=_column(time for time, _ in launched),
        thread=_column(thread for _, thread in launched),
        scope=_column(paths.of(e)[1] for e in kernels),
        calls=calls.loc[calls["scope"] != NO_SCOPE, CALL_COLUMNS].astype(np.int64),
    )


def _own_scope(event: Event, paths: Paths) -> int:
    """The scope that a range is, NO_SCOPE where it names no module."""
    path, around = paths.of(event)
    if not paths.names_module(path[-1]):
        return NO_SCOPE
    return paths.scopes.child(around, path[-1])


def _places(events: Sequence[Event]) -> dict[int | str, tuple[int, int]]:
    """Device and stream of the tracks that have a name, such as "GPU Stream 7"."""
    found: dict[int | str, tuple[int, int]] = {}
    for event in events:
        if event.ph == "M" and event.name == "thread_name":
            name = msgspec.json.decode(event.args, type=Arguments).name
            stream, device = _STREAM.search(name), _DEVICE.search(name)
            if stream:
                found[event.tid] = (int(device[1]) if device else 0, int(stream[1]))
    return found


def _column(values: Iterator[int]) -> npt.NDArray[np.int64]:
    return np.fromiter(values, np.int64)

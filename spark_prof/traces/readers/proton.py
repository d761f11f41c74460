"""Reads what Triton's profiler Proton writes: call trees and Chrome traces (`data="trace"`).

Formats: third_party/proton/csrc/lib/Data/TreeData.cpp and TraceData.cpp of triton-lang/triton.

A tree is Hatchet's JSON or its msgpack twin: a list of the root and of what is known about the
devices; a node has a frame with a name, metrics of its own (those of its children are not in them)
and children. A kernel's node has `time (ns)` and `count`.

Times of a trace are microseconds since the first event; a kernel's `tid` is its stream, its
`args.call_stack` the call path from ROOT to itself. Until Triton 3.5 there is one document a line,
one for each stream; later there is one document, with the ranges of CPU threads and arrows from
launches to kernels.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pandas as pd

from spark_prof.arrays import Int64s
from spark_prof.errors import CommandError
from spark_prof.traces.compressed import read_whole
from spark_prof.traces.foreign import (
    CALL_COLUMNS,
    Foreign,
    ForeignProcess,
    KernelSum,
    NamesModule,
    Window,
    end_to_end,
    gpu_frame,
    window,
)
from spark_prof.traces.rank_files import rank_named
from spark_prof.traces.scopes import NO_SCOPE, Scopes

FORMAT = "proton"

ROOT = "ROOT"  # the name of a call path's beginning

_METADATA = "__proton_launch_metadata"
"""The scope of kernels that compute what a launch hook tells about the next launch."""
_METRIC = "<metric>"  # the frame of kernels that copy a metric out of the GPU

_CAPTURED = "<captured_at>"
"""The frame, since Triton 3.7, between who launched a CUDA graph and who captured its kernel."""

_VENDORS = {"CUDA": "NVIDIA", "HIP": "AMD"}


def _is_own(path: Iterable[str]) -> bool:
    """Whether Proton itself launched kernels with that call path: they are left out."""
    return any(name == _METRIC or name.partition(":")[0] == _METADATA for name in path)


def _without_own(kernels: int, ns: int) -> list[str]:
    """What to say about Proton's own kernels."""
    return [f"{kernels} kernels of Proton itself ({ns} ns) are left out"] if kernels else []


def _scope_of(path: Sequence[str], scopes: Scopes, names_module: NamesModule) -> int:
    """The innermost scope of a call path, NO_SCOPE where no frame names a module.

    Of a kernel in a CUDA graph where it was captured tells, not who launched the graph.
    """
    scope = NO_SCOPE
    captured = max((n for n, name in enumerate(path, 1) if name == _CAPTURED), default=0)
    for name in path[captured:]:
        if names_module(name):
            scope = scopes.child(scope, name)
    return scope


def _gpu_facts(devices: Mapping[str, Any], used_devices: set[int]) -> dict[str, Any]:
    """The facts of the GPU that ran kernels, from the last element of a tree.

    Of GPUs of several kinds that did only the vendor is one.
    """
    for kind, vendor in _VENDORS.items():
        gpus = devices.get(kind)
        if not isinstance(gpus, dict) or not gpus:
            continue
        gpu: dict[str, Any] = {"vendor": vendor}
        used = [
            properties
            for number, properties in gpus.items()
            if number in set(map(str, used_devices))
        ]
        first = used[0] if used else gpus[min(gpus)]
        if any(properties != first for properties in used):
            return {"gpu": gpu}
        arch = str(first.get("arch", "")) if isinstance(first, dict) else ""
        if vendor == "NVIDIA" and arch.isdecimal() and 2 <= len(arch) <= 3:
            gpu["compute_capability"] = f"{arch[:-1]}.{arch[-1]}"
        elif vendor == "AMD" and arch:
            gpu["name"] = arch
        if isinstance(first, dict) and isinstance(first.get("num_sms"), int):
            gpu["sms"] = first["num_sms"]
        return {"gpu": gpu}
    return {}


_FEWER = "record fewer steps with Proton"
_MOST_TREE_BYTES = 256 << 20
_BEGIN = 1024
_DEVICES = frozenset(map(str, range(64)))


class Frame(msgspec.Struct, gc=False):
    """A place in the call path."""

    name: str


class ProtonNode(msgspec.Struct):
    """A node of the tree."""

    frame: Frame
    metrics: dict[str, Any] = {}
    children: list[ProtonNode] = []


def proton_tree(path: Path, names_module: NamesModule) -> Foreign:
    """Reads a tree, JSON or msgpack, plain or compressed."""
    root, devices = _decoded(path)
    facts: dict[str, Any] = {"summed": True, "tool": "proton"}
    process = ForeignProcess(rank_named(path.name), facts)
    sums, profiler_sums = _sums(root, process.scopes, names_module)
    facts |= _gpu_facts(devices, {row.device for row in sums})
    if not sums:
        raise CommandError(
            f"{path} holds no kernel times; record with Proton's backend cupti or roctracer, "
            "not with its instrumentation"
        )
    lost = [
        "a tree of sums: the order of the kernels, the gaps between them, steps and launches are "
        "unknown; each instance of a kernel is given its mean time",
        *_without_own(
            sum(row.instances for row in profiler_sums), sum(row.total_ns for row in profiler_sums)
        ),
    ]
    if process.facts.get("gpu", {}).get("vendor") == "AMD":
        lost.append("AMD GPU: kernels are labelled by name only, no tensor-core evidence")
    return Foreign(FORMAT, [process], end_to_end(0, sums, path), lost)


def _decoded(path: Path) -> tuple[ProtonNode, dict[str, Any]]:
    data = read_whole(path, _MOST_TREE_BYTES, _FEWER)
    codec: Any = msgspec.json if data[:_BEGIN].lstrip()[:1] == b"[" else msgspec.msgpack
    try:
        root, *rest = codec.decode(data, type=list[msgspec.Raw])
        devices = codec.decode(rest[0], type=dict[str, Any]) if rest else {}
        return codec.decode(root, type=ProtonNode), devices
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise CommandError(f"{path} is not a whole tree of Proton ({error})") from error


def _sums(
    root: ProtonNode, scopes: Scopes, names_module: NamesModule
) -> tuple[list[KernelSum], list[KernelSum]]:
    """The program's kernels in the order of the tree, and Proton's own."""
    sums: list[KernelSum] = []
    profiler_sums: list[KernelSum] = []
    pending: list[tuple[ProtonNode, tuple[str, ...]]] = [(root, ())]
    while pending:
        node, path = pending.pop()
        name = node.frame.name
        inside = path if not path and name == ROOT else (*path, name)
        pending.extend((child, inside) for child in reversed(node.children))
        metrics = {key.lower(): value for key, value in node.metrics.items()}
        time, count = metrics.get("time (ns)"), metrics.get("count")
        if not isinstance(time, int) or not isinstance(count, int) or (time, count) == (0, 0):
            continue
        device = str(metrics.get("device_id", metrics.get("deviceid", "0")))
        number = int(device) if device in _DEVICES else 0
        if _is_own(inside):
            profiler_sums.append(KernelSum(name, count, time))
            continue
        scope = _scope_of(path, scopes, names_module)
        sums.append(KernelSum(name, count, time, number, scope=scope))
    return sums, profiler_sums


_LATEST_NS = 1 << 62
_MOST_BYTES = 512 << 20
_STREAM = re.compile(r"Stream (\d{1,18})$")
_DEVICE = re.compile(r"\b(?:GPU|Device) (\d{1,4})\b")
_NO_LAUNCH = (-1, -1)


class ProtonEvent(msgspec.Struct, gc=False):
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


class ProtonDocument(msgspec.Struct):
    """A trace, or a stream's part of one."""

    traceEvents: list[ProtonEvent]  # noqa: N815 - the format's name


class _Paths:
    """The call paths of events, each decoded and placed once."""

    def __init__(self, scopes: Scopes, names_module: NamesModule) -> None:
        self._scopes, self._names_module = scopes, names_module
        self._of = cache(self._decoded)

    def of(self, event: ProtonEvent) -> tuple[tuple[str, ...], int]:
        """The names around and with the event, and the scope of those around it."""
        return self._of(bytes(event.args))

    def own_scope(self, event: ProtonEvent) -> int:
        """The scope that a range is, NO_SCOPE where it names no module."""
        (*_, name), around = self.of(event)
        return self._scopes.child(around, name) if self._names_module(name) else NO_SCOPE

    def _decoded(self, arguments: bytes) -> tuple[tuple[str, ...], int]:
        stack = msgspec.json.decode(arguments, type=Arguments).call_stack
        path = tuple(stack[1:] if stack[:1] == [ROOT] else stack)
        return path, _scope_of(path[:-1], self._scopes, self._names_module)


def proton_trace(path: Path, names_module: NamesModule) -> Foreign:
    """Reads a trace, plain or compressed."""
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
    process = ForeignProcess(rank_named(path.name), {"tool": "proton"})
    paths = _Paths(process.scopes, names_module)
    profiler_ns = [e.end_ns - e.start_ns for e in kernels if _is_own((*paths.of(e)[0], e.name))]
    kernels = [e for e in kernels if not _is_own((*paths.of(e)[0], e.name))]
    kernels.sort(key=lambda event: event.start_ns)
    lost = [
        "grids, registers and copies' sizes are no part of the format",
        *_without_own(len(profiler_ns), sum(profiler_ns)),
    ]
    broken = [e for e in events if e.ph == "X" and not _in_time(e)]
    unreadable = sum(e.cat == "kernel" for e in broken)
    if unusable := len(broken) - unreadable:
        lost.append(f"{unusable} events have no usable time and were left out")
    launched = _launches(events, kernels)
    if unknown := launched.count(_NO_LAUNCH):
        lost.append(f"{unknown} kernels do not tell when they were launched")
    ranges = [e for e in timed if e.cat in ("scope", "metric") and paths.of(e)[0]]
    window = _window(events, kernels, ranges, launched, paths)
    window = replace(window, trace=replace(window.trace, unreadable=unreadable))
    return Foreign(FORMAT, [process], iter([window]), lost)


def _events(path: Path) -> list[ProtonEvent]:
    """The events of all documents of the file."""
    data = read_whole(path, _MOST_BYTES, _FEWER)
    decoder = msgspec.json.Decoder(ProtonDocument)
    try:
        return decoder.decode(data).traceEvents
    except msgspec.DecodeError:
        documents = (decoder.decode(line) for line in data.splitlines() if line.strip())
        return [event for document in documents for event in document.traceEvents]


def _in_time(event: ProtonEvent) -> bool:
    return abs(event.ts) < _LATEST_NS / 1000 and 0 <= event.dur < _LATEST_NS / 1000


def _launches(
    events: Sequence[ProtonEvent], kernels: Sequence[ProtonEvent]
) -> list[tuple[int, int]]:
    """When and by which thread each kernel was launched, from the arrows."""
    begins = {e.id: (e.start_ns, e.track) for e in events if e.ph == "s" and _in_time(e)}
    arrows = {(e.tid, e.start_ns): e.id for e in events if e.ph == "f" and _in_time(e)}
    ids = (arrows.get((kernel.tid, kernel.start_ns), -1) for kernel in kernels)
    return [begins.get(number, _NO_LAUNCH) for number in ids]


def _window(
    events: Sequence[ProtonEvent],
    kernels: list[ProtonEvent],
    ranges: list[ProtonEvent],
    launched: list[tuple[int, int]],
    paths: _Paths,
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
    scope = [paths.own_scope(e) for e in ranges]
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


def _places(events: Sequence[ProtonEvent]) -> dict[int | str, tuple[int, int]]:
    """Device and stream of the tracks that have a name, such as "GPU Stream 7"."""
    places: dict[int | str, tuple[int, int]] = {}
    for event in events:
        if event.ph == "M" and event.name == "thread_name":
            name = msgspec.json.decode(event.args, type=Arguments).name
            stream, device = _STREAM.search(name), _DEVICE.search(name)
            if stream:
                places[event.tid] = (int(device[1]) if device else 0, int(stream[1]))
    return places


def _column(values: Iterator[int]) -> Int64s:
    return np.fromiter(values, np.int64)

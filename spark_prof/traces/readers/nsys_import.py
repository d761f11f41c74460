"""Reads a whole SQLite export of Nsight Systems: every process with work on a GPU.

The tables are NVIDIA's "Nsight Systems Exporter", SQLite schema, seen from 2023.4 (which has no
number) to 3.25. What an export has is told by its columns, never by its version.

Work and the API call that launched it share a correlation number. Work may start long after its
launch, in a later stretch; so launches are kept until nothing more can be theirs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from spark_prof.arrays import Flags, Int64s
from spark_prof.ending import temporary_folder
from spark_prof.errors import CommandError
from spark_prof.traces.foreign import (
    Foreign,
    ForeignProcess,
    NamesModule,
    Trace,
    Window,
    joined,
    no_work,
)
from spark_prof.traces.host_timeline import last_of_each, roots
from spark_prof.traces.readers.nsys_events import Columns, Events, ModuleNames, RangeRows
from spark_prof.traces.readers.nsys_facts import (
    created_nodes,
    lacks,
    missing_kernels,
    process_facts,
)
from spark_prof.traces.readers.nsys_file import (
    GPU_COLUMNS,
    ID_MASK,
    KERNEL,
    OVERHEADS,
    PROCESS_SHIFT,
    RUNTIME,
    Clock,
    open_export,
    read_clock,
    session_clock,
    work_frame,
)
from spark_prof.traces.readers.nsys_scan import BUCKET_ROWS, OPEN, scan_export
from spark_prof.traces.scopes import NO_SCOPE, ScopeWalk, groups

_LAUNCH_WORDS = "launch|memcpy|memset"
_QUEUE_NS = 5_000_000_000  # the kernels of one graph start at most this long after its launch


class Pending:
    """The calls of one process whose work may still come.

    Attributes:
        launches: how many calls that launch work were added.
        worked: how many of them have work.
    """

    def __init__(self) -> None:
        self.launches = self.worked = 0
        self._calls: dict[str, Any] = {}

    def add(self, calls: dict[str, Any]) -> None:
        """Adds the calls of a stretch.

        Args:
            calls: columns `correlation`, `start`, `thread`, `scope`; whether such a call
                `launches` work, and whether that is a `graph`, which is work of many kernels.
        """
        self.launches += int(calls["launches"].sum())
        calls["used"] = np.zeros(len(calls["start"]), bool)
        if self._calls:
            calls = {name: np.append(self._calls[name], calls[name]) for name in calls}
        if (calls["correlation"][1:] < calls["correlation"][:-1]).any():
            calls = _rows_of(calls, np.argsort(calls["correlation"], kind="stable"))
        self._calls = calls

    def find(self, correlation: Int64s) -> tuple[Flags, dict[str, Any]]:
        """Whether each piece of work has a launch, and which; what has none has any."""
        calls = self._calls
        if not len(calls["start"]):
            nothing = np.zeros(len(correlation), np.int64)
            return nothing.astype(bool), dict.fromkeys(calls, nothing)
        place = np.searchsorted(calls["correlation"], correlation)
        place = np.minimum(place, len(calls["start"]) - 1)
        has_launch: Flags = (calls["correlation"][place] == correlation) & (correlation >= 0)
        hit = np.zeros(len(calls["start"]), bool)
        hit[place[has_launch]] = True
        self.worked += int((hit & calls["launches"] & ~calls["used"]).sum())
        calls["used"] |= hit
        return has_launch, _rows_of(calls, place)

    def forget(self, before: int, now: int) -> None:
        """Drops calls that nothing more can belong to.

        Args:
            before: those that began since are kept in any case, ns.
            now: the next stretch begins then.
        """
        calls = self._calls
        waits = ~calls["used"] | (calls["graph"] & (calls["start"] > now - _QUEUE_NS))
        pending = (calls["start"] >= before) | (calls["launches"] & waits)
        self._calls = _rows_of(calls, np.flatnonzero(pending))


def _rows_of(columns: Mapping[str, Any], rows: Int64s) -> dict[str, Any]:
    return {name: values[rows] for name, values in columns.items()}


class _ImportedProcess:
    """One process on the way through its stretches."""

    def __init__(self, number: int, process: ForeignProcess, events: Events, clock: Clock) -> None:
        self._number, self._events, self._clock = number, events, clock
        self._walk = ScopeWalk(process.scopes, events.names.names)
        self.pending = Pending()
        self.orphans = 0  # kernels and copies whose launch is not in the export

    def window(
        self,
        bucket: int,
        ranges: RangeRows | None,
        calls: Columns | None,
        work: Mapping[str, Columns],
        overhead: Columns | None,
    ) -> Window | None:
        """The window of a bucket; None where nothing happened in it."""
        begin = self._events.begin(bucket)
        called = self._enter(ranges, begin)
        launches = self._launches(calls)
        if not (ranges or calls or work or overhead):
            return None
        gpu = self._gpu(work)
        has_launch, launched = self.pending.find(gpu["correlation"].to_numpy())
        self.orphans += len(has_launch) - int(has_launch.sum())
        if bucket + 1 < len(self._events.buckets):
            self.pending.forget(begin, self._events.begin(bucket + 1))
        trace = Trace(
            gpu=gpu,
            launches=launches,
            overhead=self._overhead(overhead),
            markers=self._markers(ranges),
        )
        return Window(
            process=self._number,
            trace=trace,
            launch_ns=np.where(has_launch, self._clock.to_epoch(launched["start"]), -1),
            thread=np.where(has_launch, launched["thread"], -1),
            scope=np.where(has_launch, launched["scope"], NO_SCOPE),
            calls=called,
        )

    def _enter(self, ranges: RangeRows | None, begin: int) -> pd.DataFrame:
        """Follows the ranges that name modules; the calls of the modules."""
        modules = (ranges or RangeRows.none()).modules()
        scope = self._walk.advance(modules, begin)
        end = self._clock.to_epoch(self._ended(modules.start, modules.end))
        return replace(modules, start=self._clock.to_epoch(modules.start), end=end).calls(scope)

    def _launches(self, calls: Columns | None) -> pd.DataFrame:
        """The API calls, which wait from now on for their work."""
        none = np.empty(0, np.int64)
        rows: Columns = calls or dict.fromkeys(
            ("start", "end", "globalTid", "correlationId", "nameId"), none
        )
        if len(rows["start"]) and (np.diff(rows["start"]) < 0).any():
            rows = _rows_of(rows, np.argsort(rows["start"], kind="stable"))
        name = self._events.export.categories(rows["nameId"])
        thread = rows["globalTid"] & ID_MASK
        texts = name.categories.astype(str).str.lower()
        codes = name.codes.astype(np.int64)
        launches, graph = (
            np.asarray(texts.str.contains(words), bool)[codes] if len(texts) else codes > 0
            for words in (_LAUNCH_WORDS, "graphlaunch")
        )
        self.pending.add(
            {
                "correlation": rows["correlationId"],
                "start": rows["start"],
                "thread": thread,
                "scope": self._walk.at(thread, rows["start"]),
                "launches": launches,
                "graph": graph,
            }
        )
        return pd.DataFrame(
            {
                "name": name,
                "start_ns": self._clock.to_epoch(rows["start"]),
                "end_ns": self._clock.to_epoch(rows["end"]),
                "thread": thread,
                "correlation": rows["correlationId"],
            }
        )

    def _gpu(self, work: Mapping[str, Columns]) -> pd.DataFrame:
        frames = [
            work_frame(table, rows, self._clock, self._events.export.categories)
            for table, rows in work.items()
        ]
        if not frames:
            return no_work()
        gpu = joined(frames)
        start = gpu["start_ns"].to_numpy()
        if (start[1:] < start[:-1]).any():
            gpu = gpu.iloc[np.argsort(start, kind="stable")].reset_index(drop=True)
        return gpu

    def _overhead(self, rows: Columns | None) -> pd.DataFrame:
        rows = rows or dict.fromkeys(("start", "end", "nameId"), np.empty(0, np.int64))
        return pd.DataFrame(
            {
                "name": self._events.export.categories(rows["nameId"]),
                "start_ns": self._clock.to_epoch(rows["start"]),
                "end_ns": self._clock.to_epoch(rows["end"]),
            }
        )

    def _markers(self, ranges: RangeRows | None) -> pd.DataFrame:
        rows = ranges or RangeRows.none()
        return pd.DataFrame(
            {
                "name": rows.name,
                "domain": rows.domain,
                "start_ns": self._clock.to_epoch(rows.start),
                "end_ns": self._clock.to_epoch(self._ended(rows.start, rows.end)),
                "thread": rows.thread,
                "nested": rows.nested,
            }
        )

    def _ended(self, start: Int64s, end: Int64s) -> Int64s:
        """The ends of ranges; one that never ended ends with the trace."""
        return np.where(end == OPEN, np.maximum(start, self._events.scan.last_ns), end)


def nsys_export(path: Path, names_module: NamesModule, bucket_rows: int = BUCKET_ROWS) -> Foreign:
    """Reads an export; its events pass through temporary files, so that memory stays bounded."""
    with ExitStack() as stack:
        folder = stack.enter_context(temporary_folder("spark-prof-nsys-"))
        export = stack.enter_context(open_export(path))
        scan, buckets = scan_export(export, folder, bucket_rows)
        if scan.impossible.get(KERNEL, 0) > scan.rows.get(KERNEL, 0):
            raise CommandError(
                f"{path} cannot be believed; record again (most of its kernels end before they "
                "start, or have times that are none)"
            )
        # The processes with work on a GPU, or where there is none, those that called CUDA.
        owners = sorted(scan.devices, key=lambda owner: (min(scan.devices[owner]), owner))
        owners = owners or sorted(scan.callers)
        if not owners:
            raise CommandError(
                f"{path} has no CUDA work; record with nsys profile --trace=cuda,nvtx and export "
                "it with nsys export --type sqlite"
            )
        dated = session_clock(export)
        clock = read_clock(export) if scan.marks and dated else dated
        events = Events(
            export, scan, buckets, ModuleNames(names_module),
            {owner: number for number, owner in enumerate(owners)},
        )  # fmt: skip
        clock = clock or Clock(np.zeros(1, np.int64), np.zeros(1, np.int64), marked=False)
        processes = _processes(events, owners, clock)
        lost = lacks(export, scan, dated is not None)
        if idle := sorted(owner & ID_MASK for owner in scan.callers - set(owners)):
            pids = ", ".join(map(str, idle[:8])) + (", ..." if len(idle) > 8 else "")
            lost.append(
                f"processes that called CUDA but ran nothing on a GPU were left out: {pids}"
            )
        rest = _windows(stack.pop_all(), events, processes, clock, lost)
    return Foreign("nsys", processes, rest, lost)


def _windows(
    stack: ExitStack, events: Events, processes: list[ForeignProcess], clock: Clock, lost: list[str]
) -> Iterator[Window]:
    """The windows, bucket by bucket; a bucket is forgotten when it was read."""
    ranks = [
        _ImportedProcess(number, process, events, clock) for number, process in enumerate(processes)
    ]
    with stack:
        for bucket in range(len(events.buckets)):
            ranges = events.ranges(bucket)
            calls = events.columns(RUNTIME, bucket, "globalTid")
            work = {table: events.columns(table, bucket, "globalPid") for table in GPU_COLUMNS}
            costs = [events.columns(table, bucket, "globalTid") for table in OVERHEADS]
            events.buckets.remove(bucket)
            for number, rank in enumerate(ranks):
                window = rank.window(
                    bucket,
                    ranges.get(number),
                    calls.get(number),
                    {table: rows[number] for table, rows in work.items() if number in rows},
                    next((rows[number] for rows in costs if number in rows), None),
                )
                if window is not None:
                    yield window
    launches = sum(rank.pending.launches for rank in ranks)
    idle = launches - sum(rank.pending.worked for rank in ranks)
    orphans = sum(rank.orphans for rank in ranks)
    lost += missing_kernels(idle, launches, orphans)
    if orphans:
        lost.append(f"{orphans} kernels and copies have no launch in the nsys report")


def _processes(events: Events, owners: list[int], clock: Clock) -> list[ForeignProcess]:
    processes = []
    nodes = created_nodes(events.export)
    rows = dict(groups(nodes["globalTid"] >> PROCESS_SHIFT))
    for number, owner in enumerate(owners):
        devices = sorted(events.scan.devices.get(owner, ()))
        process = ForeignProcess(None, process_facts(events.export, owner & ID_MASK, devices))
        if owner in rows:
            node_rows = _rows_of(nodes, rows[owner])
            process = replace(process, nodes=_nodes(events, number, process, node_rows, clock))
        processes.append(process)
    return processes


def _nodes(
    events: Events, number: int, process: ForeignProcess, rows: dict[str, Int64s], clock: Clock
) -> pd.DataFrame:
    """The nodes of a process, each with what was open when its original was created."""
    latest = last_of_each(rows["graphNodeId"], rows["originalGraphNodeId"])
    node = rows["graphNodeId"][latest]
    root = roots(node, rows["originalGraphNodeId"][latest])
    created, thread = rows["start"][latest][root], (rows["globalTid"][latest] & ID_MASK)[root]
    scope = np.full(len(node), NO_SCOPE, np.int64)
    bucket = events.buckets.of(created)
    walk = ScopeWalk(process.scopes, events.names.names)
    for at in range(int(bucket.max()) + 1):
        ranges = events.ranges(at).get(number) or RangeRows.none()
        walk.advance(ranges.modules(), events.begin(at))
        here = np.flatnonzero(bucket == at)
        scope[here] = walk.at(thread[here], created[here])
    return pd.DataFrame(
        {
            "node": node,
            "original": node[root],
            "graph": np.zeros(len(node), np.int64),
            "created_ns": clock.to_epoch(created),
            "scope": scope,
        }
    )

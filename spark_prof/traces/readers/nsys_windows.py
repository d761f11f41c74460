"""Puts the windows of an nsys export together, a stretch of time after another."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd
from pandas.api.types import union_categoricals

from spark_prof.traces.foreign import Process, Window
from spark_prof.traces.readers.nsys_clock import Clock
from spark_prof.traces.readers.nsys_events import Columns, Events, RangeRows
from spark_prof.traces.readers.nsys_file import ID_MASK, OVERHEADS, RUNTIME
from spark_prof.traces.readers.nsys_launches import Launched, Pending
from spark_prof.traces.readers.nsys_ranges import ScopeWalk
from spark_prof.traces.readers.nsys_scan import OPEN
from spark_prof.traces.readers.nsys_work import GPU_COLUMNS, work_frame
from spark_prof.traces.readers.trace import Trace
from spark_prof.traces.readers.windows import gpu_frame
from spark_prof.traces.scopes import NO_SCOPE
from spark_prof.traces.tables import empty_frame

Int64s = npt.NDArray[np.int64]

_LAUNCH_WORDS = "launch|memcpy|memset"


@dataclass
class Unplaced:
    """What could not be joined, over all windows.

    Attributes:
        work: kernels and copies whose launch is not in the export.
        launches: calls that launch work.
        idle: those of them that have none.
    """

    work: int = 0
    launches: int = 0
    idle: int = 0


def windows(
    events: Events, processes: Sequence[Process], clock: Clock, unplaced: Unplaced
) -> Iterator[Window]:
    """The windows, bucket by bucket; a bucket is forgotten when it was read.

    Args:
        events: the events of the export.
        processes: its processes, by their numbers.
        clock: turns its times into those of the windows.
        unplaced: counts what could not be joined.
    """
    ranks = [
        _Rank(number, process, events, clock, unplaced) for number, process in enumerate(processes)
    ]
    for bucket in range(len(events.buckets)):
        ranges = events.ranges(bucket)
        calls = events.columns(RUNTIME, bucket, "globalTid")
        work = {table: events.columns(table, bucket, "globalPid") for table in GPU_COLUMNS}
        costs = [events.columns(table, bucket, "globalTid") for table in OVERHEADS]
        events.buckets.remove(bucket)
        for number, rank in enumerate(ranks):
            overhead = [found[number] for found in costs if number in found]
            found = rank.window(
                bucket,
                ranges.get(number),
                calls.get(number),
                {table: rows[number] for table, rows in work.items() if number in rows},
                overhead[0] if overhead else None,
            )
            if found is not None:
                yield found
    for rank in ranks:
        rank.close()


class _Rank:
    """One process on the way through its stretches."""

    def __init__(
        self, number: int, process: Process, events: Events, clock: Clock, unplaced: Unplaced
    ) -> None:
        self._number, self._events, self._clock = number, events, clock
        self._unplaced = unplaced
        self._walk = ScopeWalk(process.scopes, events.names.names)
        self._pending = Pending()

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
        found, launched = self._pending.find(gpu["correlation"].to_numpy())
        self._unplaced.work += len(found) - int(found.sum())
        if bucket + 1 < len(self._events.buckets):
            self._pending.forget(begin, self._events.begin(bucket + 1))
        trace = Trace(
            gpu=gpu,
            launches=launches,
            operators=empty_frame("overhead").assign(part=0, thread=0),
            overhead=self._overhead(overhead),
            markers=self._markers(ranges),
        )
        return Window(
            process=self._number,
            trace=trace,
            launch_ns=np.where(found, self._clock.to_epoch(launched.start), -1),
            thread=np.where(found, launched.thread, -1),
            scope=np.where(found, launched.scope, NO_SCOPE),
            calls=called,
        )

    def close(self) -> None:
        """Counts the launches without work, when all was read."""
        self._unplaced.launches += self._pending.launches
        self._unplaced.idle += self._pending.launches - self._pending.worked

    def _enter(self, ranges: RangeRows | None, begin: int) -> pd.DataFrame:
        """Follows the ranges that name modules; the calls of the modules."""
        modules = ranges.modules() if ranges else RangeRows.none().modules()
        scope = self._walk.advance(modules, begin)
        return pd.DataFrame(
            {
                "scope": scope,
                "start_ns": self._clock.to_epoch(modules.start),
                "end_ns": self._clock.to_epoch(self._ended(modules.start, modules.end)),
                "thread": modules.thread,
            }
        )

    def _launches(self, calls: Columns | None) -> pd.DataFrame:
        """The API calls, which wait from now on for their work."""
        none = np.empty(0, np.int64)
        rows: Columns = calls or dict.fromkeys(
            ("start", "end", "globalTid", "correlationId", "nameId"), none
        )
        if len(rows["start"]) and (np.diff(rows["start"]) < 0).any():
            order = np.argsort(rows["start"], kind="stable")
            rows = {name: values[order] for name, values in rows.items()}
        name = self._events.export.categories(rows["nameId"])
        thread = rows["globalTid"] & ID_MASK
        texts = name.categories.astype(str).str.lower()
        codes = name.codes.astype(np.int64)
        flags = [
            np.asarray(texts.str.contains(words), bool)[codes] if len(texts) else codes > 0
            for words in (_LAUNCH_WORDS, "graphlaunch")
        ]
        self._pending.add(
            Launched(
                rows["correlationId"],
                rows["start"],
                thread,
                self._walk.at(thread, rows["start"]),
                *flags,
            )
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
            none = np.empty(0, np.int64)
            return gpu_frame(name="", start_ns=none, end_ns=none)
        gpu = _joined(frames)
        start = gpu["start_ns"].to_numpy()
        if (start[1:] < start[:-1]).any():
            gpu = gpu.iloc[np.argsort(start, kind="stable")].reset_index(drop=True)
        return gpu

    def _overhead(self, rows: Columns | None) -> pd.DataFrame:
        if rows is None:
            return empty_frame("overhead").astype(
                {"name": "category", "start_ns": np.int64, "end_ns": np.int64}
            )
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


def _joined(frames: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """The frames one below the other; their texts stay categories."""
    if len(frames) == 1:
        return frames[0]
    return pd.DataFrame(
        {
            name: union_categoricals([frame[name] for frame in frames])
            if isinstance(frames[0][name].dtype, pd.CategoricalDtype)
            else np.concatenate([frame[name].to_numpy() for frame in frames])
            for name in frames[0].columns
        }
    )

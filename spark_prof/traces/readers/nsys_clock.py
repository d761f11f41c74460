"""Turns the times of an nsys export into nanoseconds since the epoch.

An export counts from the start of its session, of which it knows the moment. Its clock is not the
one that `time.time_ns` reads, and over minutes they drift apart by more than a kernel lasts. So
spark-prof's workers leave marks that name the time, and what lies between two is interpolated.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from spark_prof.errors import CommandError

if TYPE_CHECKING:  # a worker that only leaves marks may run where Python has no sqlite3
    from spark_prof.traces.readers.nsys_file import NsysFile

Int64s = npt.NDArray[np.int64]

CLOCK_MARK = "spark_prof clock "
"""What an NVTX mark begins with that names the time, in ns since the epoch."""

MARK = 34
"""NVTX_EVENTS.eventType of a mark."""

_BURST_NS = 10_000_000
"""Marks closer together than this measure one offset."""

_LATEST_NS = 1 << 62


@dataclass(frozen=True)
class Clock:
    """Offsets between an export's time and the epoch's."""

    times: Int64s  # moments in the export's time at which the offset was measured, ascending
    offsets: Int64s  # ns to add then
    marked: bool  # whether marks measured it; else it is the session's start alone

    def to_epoch(self, times: Int64s) -> Int64s:
        """Times of the export as ns since the epoch."""
        # Differences keep every nanosecond; the offsets themselves are too large for a float.
        base = int(self.offsets[0])
        if len(self.offsets) == 1:
            return times + base
        moved = np.interp(times, self.times, (self.offsets - base).astype(np.float64))
        return times + (base + np.rint(moved).astype(np.int64))


def read_clock(export: NsysFile) -> Clock:
    """Reads the marks, else the session's start.

    Raises:
        CommandError: the export has neither.
    """
    times, offsets = _marks(export)
    if len(times):
        return Clock(times, offsets, marked=True)
    clock = session_clock(export)
    if clock is None:
        raise CommandError(
            f"{export.path} does not say when its session started, so that its kernels cannot be "
            "put into steps; export the report again with a newer nsys"
        )
    return clock


def session_clock(export: NsysFile) -> Clock | None:
    """The clock by the session's start alone; None if the export does not say when that was."""
    if not export.has("TARGET_INFO_SESSION_START_TIME", "utcEpochNs"):
        return None
    start = export.integers("TARGET_INFO_SESSION_START_TIME", {"utcEpochNs": 0})["utcEpochNs"]
    if len(start) != 1 or not 0 < start[0] < _LATEST_NS:
        return None
    return Clock(np.zeros(1, np.int64), start, marked=False)


def _marks(export: NsysFile) -> tuple[Int64s, Int64s]:
    nothing = np.empty(0, np.int64), np.empty(0, np.int64)
    if not export.has("NVTX_EVENTS", "start", "eventType", "text"):
        return nothing
    text, join = export.event_text()
    sql = (
        f"SELECT n.start, {text} FROM NVTX_EVENTS n {join} "
        f"WHERE n.eventType = {MARK} AND {text} LIKE ? ORDER BY n.start"
    )
    pairs = []
    for start, value in export.rows(sql, (f"{CLOCK_MARK}%",)):
        named = str(value).removeprefix(CLOCK_MARK)
        if isinstance(start, int) and named.isdecimal() and int(named) < _LATEST_NS:
            pairs.append((start, int(named) - start))
    if not pairs:
        return nothing
    times, offsets = np.array(pairs, np.int64).T
    # A mark comes a little after the time that it names: of a burst, the soonest is right.
    burst = np.flatnonzero(np.diff(times, prepend=times[0] - 2 * _BURST_NS) > _BURST_NS)
    best = [
        part.argmax() + first
        for part, first in zip(np.split(offsets, burst[1:]), burst, strict=True)
    ]
    return times[best], offsets[best]

"""Reads the NVTX ranges of one process from an SQLite export of Nsight Systems.

Event types: ENUM_NSYS_EVENT_TYPE of the exports. Push/pop ranges of one thread and domain are
nested; start/end ranges need not be, and may end on another thread.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from spark_prof.traces.readers.nsys_clock import read_clock
from spark_prof.traces.readers.nsys_file import ID_MASK, PROCESS_SHIFT, NsysFile, open_export

__all__ = ["nsys_ranges"]

_PUSH_POP, _START_END, _DOMAIN = 59, 60, 75
_COLUMNS = ["name", "domain", "nested", "start_ns", "end_ns", "thread"]


def nsys_ranges(path: Path, pid: int, start_ns: int, end_ns: int) -> pd.DataFrame:
    """The ranges of a process that began between two moments, in order of their start.

    Columns: name, domain (empty for the default one), nested (push/pop), start_ns, end_ns, thread.
    A range that never ended is left out.

    Raises:
        CommandError: it is no whole export, or does not say when its session started.
    """
    with open_export(path) as export:
        if not export.has("NVTX_EVENTS", "start", "end", "eventType", "text", "globalTid"):
            return pd.DataFrame(columns=_COLUMNS)
        clock = read_clock(export)
        domains = _domains(export, pid)
        domain = "n.domainId" if export.has("NVTX_EVENTS", "domainId") else "0"
        text, join = export.event_text()
        sql = (
            f"SELECT {text}, {domain}, n.eventType, n.start, n.end, n.globalTid & {ID_MASK} "
            f"FROM NVTX_EVENTS n {join} WHERE n.eventType IN ({_PUSH_POP}, {_START_END}) "
            f"AND n.end IS NOT NULL AND (n.globalTid >> {PROCESS_SHIFT}) & {ID_MASK} = ? "
            "AND n.start BETWEEN ? AND ? ORDER BY n.start"
        )
        values = (pid, clock.from_epoch(start_ns), clock.from_epoch(end_ns))
        rows = list(export.rows(sql, values))
        starts, ends, threads = (
            np.array([row[place] for row in rows], np.int64) for place in (3, 4, 5)
        )
        return pd.DataFrame(
            {
                "name": [str(row[0] or "") for row in rows],
                "domain": [domains.get(row[1], "") for row in rows],
                "nested": [row[2] == _PUSH_POP for row in rows],
                "start_ns": clock.to_epoch(starts),
                "end_ns": clock.to_epoch(ends),
                "thread": threads,
            },
            columns=_COLUMNS,
        )


def _domains(export: NsysFile, pid: int) -> dict[object, str]:
    """The names of the process's domains, by their number; a domain is created like an event."""
    if not export.has("NVTX_EVENTS", "domainId"):
        return {}
    text, join = export.event_text()
    sql = (
        f"SELECT n.domainId, {text} FROM NVTX_EVENTS n {join} WHERE n.eventType = {_DOMAIN} "
        f"AND (n.globalTid >> {PROCESS_SHIFT}) & {ID_MASK} = ?"
    )
    return {number: str(name or "") for number, name in export.rows(sql, (pid,))}

"""Reads a whole SQLite export of Nsight Systems: every process with work on a GPU.

The tables are NVIDIA's "Nsight Systems Exporter", SQLite schema, seen from 2023.4 (which has no
number) to 3.25. What an export has is told by its columns, never by its version.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd

from spark_prof.ending import temporary_folder
from spark_prof.errors import CommandError
from spark_prof.traces.foreign import Foreign, NamesModule, Process, Window
from spark_prof.traces.readers.nsys_buckets import BUCKET_ROWS
from spark_prof.traces.readers.nsys_clock import Clock, read_clock, session_clock
from spark_prof.traces.readers.nsys_events import Events, RangeRows
from spark_prof.traces.readers.nsys_facts import lacks, process_facts
from spark_prof.traces.readers.nsys_file import ID_MASK, PROCESS_SHIFT, open_export
from spark_prof.traces.readers.nsys_graphs import created_nodes
from spark_prof.traces.readers.nsys_ranges import ScopeWalk
from spark_prof.traces.readers.nsys_scan import Scan, scan_export
from spark_prof.traces.readers.nsys_texts import ModuleNames
from spark_prof.traces.readers.nsys_windows import Unplaced, windows
from spark_prof.traces.scopes import NO_SCOPE, groups
from spark_prof.traces.timeline import last_of_each, roots

Int64s = npt.NDArray[np.int64]

_UNMATCHED = 0.1
"""Above this share of launches without work on the GPU, the report is not whole."""


def nsys_export(path: Path, names_module: NamesModule, bucket_rows: int = BUCKET_ROWS) -> Foreign:
    """Reads an export; its events pass through temporary files, so that memory stays bounded.

    Args:
        path: the export, which is only read.
        names_module: says whether an NVTX range's name names a module of the model.
        bucket_rows: about how many events are in memory at once.

    Raises:
        CommandError: it is no whole export, or has no CUDA work. Also while the windows are read.
    """
    with ExitStack() as stack:
        folder = stack.enter_context(temporary_folder("spark-prof-nsys-"))
        export = stack.enter_context(open_export(path))
        scan, buckets = scan_export(export, folder, bucket_rows)
        owners = _owners(scan)
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
        lost += _others(scan, owners)
        rest = _windows(stack.pop_all(), events, processes, clock, lost)
    return Foreign("nsys", processes, rest, lost)


def _windows(
    stack: ExitStack, events: Events, processes: list[Process], clock: Clock, lost: list[str]
) -> Iterator[Window]:
    unplaced = Unplaced()
    with stack:
        yield from windows(events, processes, clock, unplaced)
    # Where both lack the other, the export is a slice of a longer one.
    if unplaced.idle > max(_UNMATCHED * unplaced.launches, 2 * unplaced.work):
        lost.append(
            f"{unplaced.idle} of {unplaced.launches} launches have no kernel in the nsys report; "
            "an nsys that is older than the driver misses kernels, take the one of your CUDA "
            "toolkit or a newer"
        )
    if unplaced.work:
        lost.append(f"{unplaced.work} kernels and copies have no launch in the nsys report")


def _owners(scan: Scan) -> list[int]:
    """The processes with work on a GPU, or where there is none, those that called CUDA."""
    if scan.devices:
        return sorted(scan.devices, key=lambda owner: (min(scan.devices[owner]), owner))
    return sorted(scan.callers)


def _others(scan: Scan, owners: list[int]) -> list[str]:
    idle = sorted(owner & ID_MASK for owner in scan.callers - set(owners))
    if not idle:
        return []
    told = ", ".join(map(str, idle[:8])) + (", ..." if len(idle) > 8 else "")
    return [f"processes that called CUDA but ran nothing on a GPU were left out: {told}"]


def _processes(events: Events, owners: list[int], clock: Clock) -> list[Process]:
    found = []
    nodes = created_nodes(events.export)
    rows = dict(groups(nodes["globalTid"] >> PROCESS_SHIFT))
    for owner in owners:
        devices = sorted(events.scan.devices.get(owner, ()))
        process = Process(None, process_facts(events.export, owner & ID_MASK, devices))
        found.append(process)
        if owner in rows:
            own = {name: values[rows[owner]] for name, values in nodes.items()}
            number = events.numbers[owner]
            found[-1] = Process(
                None, process.facts, process.scopes, _nodes(events, number, process, own, clock)
            )
    return found


def _nodes(
    events: Events, number: int, process: Process, rows: dict[str, Int64s], clock: Clock
) -> pd.DataFrame:
    """The nodes of a process, each with what was open when its original was created."""
    kept = last_of_each(rows["graphNodeId"], rows["originalGraphNodeId"])
    node = rows["graphNodeId"][kept]
    root = roots(node, rows["originalGraphNodeId"][kept])
    created, thread = rows["start"][kept][root], (rows["globalTid"][kept] & ID_MASK)[root]
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

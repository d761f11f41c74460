"""Writes a bundle as a Chrome trace, for ui.perfetto.dev, chrome://tracing and Kineto readers.

Format: Chrome's Trace Event Format with the categories and arguments of libkineto's
output_json.cpp. Every rank is a process. Times are microseconds with three decimals since
`baseTimeNanoseconds`, exact to the nanosecond. Memory holds the tables of one rank and the text
of a stretch of rows.

A window is so many kernels of prepared ranks around a range of time, made of what a page holds in
memory, so that its time does not depend on how long the recording is. What the host did is only in
the whole trace.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
import pandas as pd
import pyarrow.compute as pc

from spark_prof.analyzers.breakdown import KernelRow
from spark_prof.analyzers.classify.classifier import Label
from spark_prof.analyzers.layer_consistency import label_kernels
from spark_prof.analyzers.lookup import mapping_in
from spark_prof.analyzers.rank_layout import parallel_of
from spark_prof.analyzers.windows import timed_windows
from spark_prof.arrays import Int64s
from spark_prof.errors import CommandError
from spark_prof.exporters.table_folder import Selection
from spark_prof.exporters.trace_events import (
    RankTrace,
    Tracks,
    integers,
    numbers,
    slices,
    stream_tracks,
    write_calls,
    write_counters,
    write_kernels,
    write_spans,
    write_steps,
)
from spark_prof.traces.bundle import Bundle
from spark_prof.vocabulary import COMPONENTS

if TYPE_CHECKING:
    from spark_prof.datasets.prepared import Prepared

_TIMED = ("kernels", "host", "ranges", "steps", "counters")


def write_perfetto(bundle: Bundle, selection: Selection, out: BinaryIO) -> None:
    """Writes the trace of some ranks, and of some steps of their kernels, launches and ranges."""
    ranks = selection.ranks_of(bundle)
    if bundle.meta.settings.get("summed"):
        raise CommandError(
            f"{bundle.path.name} holds sums without times, so it has no time line; "
            "export it with --format csv or parquet"
        )
    origin = _origin(bundle, ranks)
    begin_trace(out, _heading(bundle, ranks, origin))
    names: list[str] = []
    first_flow = 1
    for rank in ranks:
        tracks = Tracks(rank + 1, _process_name(bundle, rank))
        kernels = label_kernels(bundle, rank)
        windows = timed_windows(bundle, rank, kernels).steps
        if not selection.all_steps:
            kernels = kernels[selection.rows(kernels["step"])].reset_index(drop=True)
            windows = windows[selection.rows(windows["step"])]
        trace = RankTrace(rank, kernels, origin, tracks, out)
        of_kernels = write_device(trace, windows)
        launches = write_calls(trace, bundle, selection)
        write_counters(trace, bundle)
        first_flow = write_flows(trace, launches, of_kernels, first_flow)
        names += tracks.events()
    end_trace(out, names)


def write_device(trace: RankTrace, windows: pd.DataFrame) -> Int64s:
    """Writes what a rank's device did in these steps; returns the track of each kernel."""
    steps, layers, components = map(trace.tracks.add, ("steps", "layers", "components"))
    tracks = stream_tracks(trace)
    # Before spans: of slices of one time Perfetto, told to choose it by its time, takes the first.
    write_kernels(trace, tracks)
    write_steps(trace, windows, steps)
    write_spans(trace, layers, components)
    return tracks


def begin_trace(out: BinaryIO, heading: Mapping[str, Any]) -> None:
    """Begins a trace; its events follow."""
    out.write(b"{\n")
    for key, value in heading.items():
        out.write(f"{json.dumps(key)}: {json.dumps(value)},\n".encode())
    out.write(b'"traceEvents": [\n')


def end_trace(out: BinaryIO, names: Sequence[str]) -> None:
    """Ends a trace with the events that name its tracks."""
    # No event but the last goes without a comma, and these are certainly there.
    out.write(",\n".join(names).encode() + b"\n]}\n")


def _heading(bundle: Bundle, ranks: tuple[int, ...], origin: int) -> dict[str, Any]:
    facts = bundle.facts(ranks[0])
    gpu = mapping_in(facts, "gpu")
    device: dict[str, Any] = {"name": str(gpu.get("name", "unknown"))}
    numbers = str(gpu.get("compute_capability")).split(".")
    if len(numbers) == 2 and all(number.isdecimal() for number in numbers):
        device |= {"computeMajor": int(numbers[0]), "computeMinor": int(numbers[1])}
    heading: dict[str, Any] = {
        "schemaVersion": 1,
        "displayTimeUnit": "ms",
        "baseTimeNanoseconds": origin,
        "traceName": f"{bundle.path.name} (spark-prof)",
        "deviceProperties": [{"id": number} | device for number in _devices(bundle, ranks)],
        "lost": list(bundle.meta.lost),
    }
    if len(ranks) == 1:
        world = parallel_of(bundle, ranks[0]).world
        heading["distributedInfo"] = {"rank": ranks[0], "world_size": world}
    return heading


def _process_name(bundle: Bundle, rank: int) -> str:
    name = mapping_in(bundle.facts(rank), "gpu").get("name")
    return f"rank {rank}: {name}" if name else f"rank {rank}"


def _devices(bundle: Bundle, ranks: tuple[int, ...]) -> list[int]:
    devices: set[int] = set()
    for rank in ranks:
        for batch in bundle.batches("kernels", rank, ["device"]):
            devices.update(pc.unique(batch["device"]).to_pylist())
    return sorted(device for device in devices if device >= 0)


def _origin(bundle: Bundle, ranks: tuple[int, ...]) -> int:
    """The earliest time of all; viewers drop what is before 0."""
    earliest = [
        pc.min(batch["start_ns"]).as_py()
        for rank in ranks
        for table in _TIMED
        for batch in bundle.batches(table, rank, ["start_ns"])
        if len(batch)
    ]
    if not earliest:
        raise CommandError(f"{bundle.label} holds nothing that has a time; record again")
    return int(min(earliest))


def write_flows(trace: RankTrace, launches: pd.DataFrame, tracks: Int64s, first_flow: int) -> int:
    """Writes an arrow a launch; one of a CUDA graph points at the first kernel of the graph.

    A viewer joins arrows of all processes by their numbers; returns the one after the last.
    """
    start, correlation = integers(trace.kernels, "start_ns", "correlation")
    launched = np.flatnonzero(correlation >= 0)
    first = launches[["correlation", "start_ns", "track"]].drop_duplicates("correlation")
    of, begun, track = integers(first, *first.columns)
    correlations, at = np.unique(correlation[launched], return_index=True)
    _, of_kernel, of_launch = np.intersect1d(
        correlations, of, assume_unique=True, return_indices=True
    )
    kernel = launched[at[of_kernel]]
    from_ns, from_track = begun[of_launch], track[of_launch]
    for part in slices(len(kernel)):
        count = len(kernel[part])
        flow = numbers(first_flow + part.start + np.arange(count, dtype=np.int64))
        trace.write(
            '{"ph":"s","cat":"ac2g","name":"ac2g","id":', flow,
            ',"tid":', numbers(from_track[part]),
            ',"ts":', trace.since_origin(from_ns[part]),
        )  # fmt: skip
        trace.write(
            '{"ph":"f","bp":"e","cat":"ac2g","name":"ac2g","id":', flow,
            ',"tid":', numbers(tracks[kernel[part]]),
            ',"ts":', trace.since_origin(start[kernel[part]]),
        )  # fmt: skip
    return first_flow + len(kernel)


MOST_KERNELS = 20_000  # of a rank: about 10 MB, which a browser has drawn within seconds

_COPY = Label(None, "copy", None, "name", None)
_UNKNOWN = Label(None, "", None, "", None)


@dataclass(frozen=True)
class TraceWindow:
    """From an instant until before another one; the kernels that begin in it are shown."""

    begin_ns: int
    end_ns: int


@dataclass(frozen=True)
class WindowTrace:
    """A trace, as JSON, and the clock's time of its first and of its last instant.

    Perfetto counts from the first one.
    """

    text: bytes
    first_ns: int
    last_ns: int


def window_around(
    prepared: Prepared, begin_ns: int, end_ns: int, most: int = MOST_KERNELS
) -> TraceWindow:
    """The window around a range, of whole steps where there are any.

    It has so many kernels at most; of a range with more of them those at its begin.
    """
    start, steps = prepared.kernels.start_ns, prepared.steps
    begins, finishes = integers(steps, "begin_ns", "finish_ns")
    first, stop = np.searchsorted(start, (begin_ns, end_ns)).tolist()
    low = first - max(most - (stop - first), 0) // 2
    low = max(min(low, len(start) - most), 0)
    high = low + most
    if low == 0:
        since = int(min(start[0], begins.min(initial=start[0])))
    else:
        whole = begins[(begins >= start[low]) & (begins <= begin_ns)]
        since = int(whole.min() if len(whole) else start[low])
    if high >= len(start):
        last = prepared.kernels.end_ns.max()
        until = int(max(last, finishes.max(initial=last))) + 1
    else:
        whole = finishes[(finishes <= start[high]) & (finishes >= end_ns)]
        until = int(whole.max() if len(whole) else start[high])
    return TraceWindow(since, until)


def window_trace(
    ranks: Mapping[int, Prepared],
    window: TraceWindow,
    ahead_ns: Mapping[int, int],
    address: str = "",
) -> WindowTrace:
    """The trace of a window of some ranks, whose clock is the first one's.

    Args:
        ahead_ns: by how much the clock of a rank is ahead of that, 0 if left out.
        address: of the explorer's page of kernels, with its query; each kernel gets a link to its
            own page if it is given.
    """
    tables = {
        rank: _part(prepared, window, ahead_ns.get(rank, 0)) for rank, prepared in ranks.items()
    }
    if address:
        for rank, (kernels, _) in tables.items():
            kernels["page"] = _pages(kernels, ranks[rank], f"{address}&rank={rank}")
    firsts = [int(c.min()) for kernels, steps in tables.values()
              for c in (kernels["start_ns"], steps["begin_ns"]) if len(c)]  # fmt: skip
    lasts = [int(c.max()) for kernels, steps in tables.values()
             for c in (kernels["end_ns"], steps["finish_ns"]) if len(c)]  # fmt: skip
    first = min(firsts, default=window.begin_ns)
    out = BytesIO()
    begin_trace(out, {"displayTimeUnit": "ms", "baseTimeNanoseconds": first})
    names: list[str] = []
    for rank, (kernels, steps) in tables.items():
        tracks = Tracks(rank + 1, f"rank {rank}")
        write_device(RankTrace(rank, kernels, first, tracks, out), steps)
        names += tracks.events()
    end_trace(out, names)
    return WindowTrace(out.getvalue(), first, max(lasts, default=window.end_ns))


def _part(
    prepared: Prepared, window: TraceWindow, ahead_ns: int
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The kernels and the steps of a rank, in the time of the window."""
    begin, end = window.begin_ns + ahead_ns, window.end_ns + ahead_ns
    low, high = np.searchsorted(prepared.kernels.start_ns, (begin, end)).tolist()
    steps = prepared.steps
    steps = steps[((steps["begin_ns"] < end) & (steps["finish_ns"] > begin)).to_numpy()]
    return (
        _kernels(prepared, slice(low, min(high, low + MOST_KERNELS)), ahead_ns),
        steps.assign(
            begin_ns=steps["begin_ns"] - ahead_ns, finish_ns=steps["finish_ns"] - ahead_ns
        ),
    )


def _pages(kernels: pd.DataFrame, prepared: Prepared, address: str) -> pd.Series[Any]:
    """The address of each kernel's page."""
    places = {name: place for place, name in enumerate(prepared.kernels.names)}
    names = [places[name] for name in kernels["name"].cat.categories]
    pair_numbers = kernels["name"].cat.codes.to_numpy().astype(np.int64) * len(COMPONENTS)
    pairs, of = np.unique(
        pair_numbers + kernels["component"].cat.codes.to_numpy(), return_inverse=True
    )
    pages = [
        f"{address}&kernel={names[name]}&component={COMPONENTS[component]}"
        for name, component in (divmod(pair, len(COMPONENTS)) for pair in pairs.tolist())
    ]
    return pd.Series(np.array(pages, object)[of], dtype="category")


def _kernels(prepared: Prepared, part: slice, ahead_ns: int) -> pd.DataFrame:
    """The columns of some kernels as the writers of tracks take them."""
    columns = prepared.kernels
    kernels, name = np.unique(columns.name[part], return_inverse=True)
    names = [columns.names[place] for place in kernels.tolist()]
    launches = columns.launches.iloc[columns.launch[part]].reset_index(drop=True)
    copies = np.array(columns.copies, bool)[kernels]
    row_of = {row.name: row for row in prepared.report.kernels}
    labels: list[KernelRow | Label] = [
        _COPY if copy else row_of.get(text, _UNKNOWN)
        for text, copy in zip(names, copies.tolist(), strict=True)
    ]
    start_ns = columns.start_ns[part] - (0 if columns.ahead_ns is None else columns.ahead_ns[part])
    rows = launches.assign(
        start_ns=start_ns - ahead_ns,
        end_ns=columns.end_ns[part] - ahead_ns,
        kind=pd.Categorical(np.where(copies[name], "memcpy", "kernel")),
        name=pd.Categorical.from_codes(name, pd.Index(names)),
        step=columns.step[part],
        layer=columns.layer[part],
        component=pd.Categorical.from_codes(
            columns.component[part].astype(np.int64), pd.Index(COMPONENTS)
        ),
        **{
            column: pd.Categorical([getattr(label, column) or "" for label in labels])[name]
            for column in ("engine", "precision", "evidence", "conversion")
        },
    )
    # A window shows when kernels were seen, also those that wait.
    return rows.sort_values("start_ns", kind="stable", ignore_index=True)

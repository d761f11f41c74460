"""The tracks of a GPU's streams: every kernel, copy and memset with all that is known about it."""

from __future__ import annotations

import numpy as np

from spark_prof.exporters.event_text import choices, microseconds, numbers, texts, triples
from spark_prof.exporters.lanes import lanes
from spark_prof.exporters.rank_trace import Int64s, RankTrace, slices

_CATEGORIES = {"memcpy": "gpu_memcpy", "memset": "gpu_memset", "op": "cpu_op"}
"""libkineto's words for a row's kind; every other kind is a kernel."""


def stream_tracks(trace: RankTrace) -> Int64s:
    """The track of each kernel.

    A stream has one track, and one more for each kernel that would overlap another one there.
    """
    start, end, device, stream = (
        trace.kernels[name].to_numpy(np.int64)
        for name in ("start_ns", "end_ns", "device", "stream")
    )
    found = np.empty(len(start), np.int64)
    order = np.lexsort((end, start, stream, device))
    changes = (np.diff(device[order]) != 0) | (np.diff(stream[order]) != 0)
    several = len(np.unique(device)) > 1
    for group in np.split(order, np.flatnonzero(changes) + 1) if len(order) else ():
        number = int(stream[group[0]])
        name = _name(int(device[group[0]]), number, several)
        lane = lanes(start[group], end[group])
        tracks = [trace.tracks.add(name, number)] + [
            trace.tracks.add(f"{name} (overlap {index})") for index in range(1, int(lane.max()) + 1)
        ]
        found[group] = np.array(tracks, np.int64)[lane]
    return found


def write_kernels(trace: RankTrace, tracks: Int64s) -> None:
    """Writes the kernels, copies and memsets.

    Args:
        trace: the rank.
        tracks: what `stream_tracks` returned.
    """
    for part in slices(len(trace.kernels)):
        rows = trace.kernels.iloc[part]
        start = rows["start_ns"].to_numpy(np.int64)
        kinds = rows["kind"].cat
        words = [f'"{_CATEGORIES.get(str(kind), "kernel")}"' for kind in kinds.categories]
        trace.write(
            '{"ph":"X","cat":', choices(kinds.codes.to_numpy(), words),
            ',"name":', texts(rows["name"]),
            ',"tid":', numbers(tracks[part]),
            ',"ts":', trace.since_origin(start),
            ',"dur":', microseconds(np.maximum(rows["end_ns"].to_numpy(np.int64) - start, 0)),
            ',"args":{"device":', numbers(rows["device"]),
            ',"stream":', numbers(rows["stream"]),
            ',"correlation":', numbers(rows["correlation"]),
            ',"graph node id":', numbers(rows["graph_node"]),
            ',"grid":', triples(rows["grid"]),
            ',"block":', triples(rows["block"]),
            ',"registers per thread":', numbers(rows["registers"]),
            ',"shared memory":', numbers(rows["shared_bytes"]),
            ',"bytes":', numbers(rows["bytes"]),
            ',"step":', numbers(rows["step"], none=-1),
            ',"layer":', numbers(rows["layer"], none=-1),
            ',"component":', texts(rows["component"]),
            ',"engine":', texts(rows["engine"]),
            ',"precision":', texts(rows["precision"], none=""),
            ',"evidence":', texts(rows["evidence"]),
            ',"conversion":', texts(rows["conversion"], none=""),
            ',"placed by":', texts(rows["placed_by"], none=""), "}",
        )  # fmt: skip


def _name(device: int, stream: int, several: bool) -> str:
    if device < 0:
        return f"operators of thread {stream}"
    return f"GPU {device} stream {stream}" if several else f"stream {stream}"

"""The arrows of a trace: from each launch to the first thing that it started on the GPU."""

from __future__ import annotations

import numpy as np

from spark_prof.exporters.event_text import numbers
from spark_prof.exporters.host_tracks import Calls
from spark_prof.exporters.rank_trace import Int64s, RankTrace, slices

__all__ = ["write_flows"]


def write_flows(trace: RankTrace, calls: Calls, tracks: Int64s, first_flow: int) -> int:
    """Writes an arrow a launch; one of a CUDA graph points at the first kernel of the graph.

    Args:
        trace: the rank.
        calls: its launches.
        tracks: of each kernel.
        first_flow: number of the first arrow; a viewer joins arrows of all processes by it.

    Returns:
        The number after the last arrow.
    """
    start = trace.kernels["start_ns"].to_numpy(np.int64)
    correlation = trace.kernels["correlation"].to_numpy(np.int64)
    launched = np.flatnonzero(correlation >= 0)
    launches = calls.launches[["correlation", "start_ns", "track"]].drop_duplicates("correlation")
    known, at = np.unique(correlation[launched], return_index=True)
    _, of_kernel, of_launch = np.intersect1d(
        known, launches["correlation"].to_numpy(np.int64), assume_unique=True, return_indices=True
    )
    kernel = launched[at[of_kernel]]
    from_ns = launches["start_ns"].to_numpy(np.int64)[of_launch]
    from_track = launches["track"].to_numpy(np.int64)[of_launch]
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

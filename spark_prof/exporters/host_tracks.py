"""The tracks of the host's threads: the launches, inside the calls of modules that made them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from spark_prof.exporters.event_text import choices, microseconds, numbers, texts
from spark_prof.exporters.lanes import lanes
from spark_prof.exporters.rank_trace import Int64s, RankTrace, slices


@dataclass(frozen=True)
class Calls:
    """What ran on a rank's host threads, each row with the `track` that it is written to.

    Attributes:
        launches: selected rows of the `host` table.
        ranges: selected rows of the `ranges` table with `path`, a category, and `layer`.
    """

    launches: pd.DataFrame
    ranges: pd.DataFrame


def find_calls(trace: RankTrace) -> Calls:
    """The launches and module calls that are exported: a launch belongs to its kernel's step."""
    launches = trace.bundle.frame("host", trace.rank)
    ranges = trace.bundle.frame("ranges", trace.rank)
    if not trace.selection.all_steps:
        launches = launches[launches["correlation"].isin(trace.kernels["correlation"])]
        ranges = ranges[trace.selection.rows(ranges["step"])]
    modules = trace.bundle.frame("modules", trace.rank, ["module", "path", "layer"])
    modules = modules.drop_duplicates("module").set_index("module")
    known = modules.index.get_indexer(pd.Index(ranges["module"]))
    paths = pd.Index([*modules["path"].astype(str), "unknown module"])
    layers = np.append(modules["layer"].to_numpy(np.int64), -1)
    ranges = ranges.assign(
        path=pd.Categorical(paths.take(known), ordered=False), layer=layers[known]
    )
    track = _tracks(
        trace,
        *(
            np.concatenate([frame[name].to_numpy(np.int64) for frame in (launches, ranges)])
            for name in ("thread", "start_ns", "end_ns")
        ),
    )
    return Calls(
        launches.assign(track=track[: len(launches)]), ranges.assign(track=track[len(launches) :])
    )


def write_calls(trace: RankTrace, calls: Calls) -> None:
    """Writes the launches and the calls of modules."""
    for part in slices(len(calls.launches)):
        rows = calls.launches.iloc[part]
        names = rows["name"].cat
        kinds = [f'"{_category(str(name))}"' for name in names.categories]
        start = rows["start_ns"].to_numpy(np.int64)
        trace.write(
            '{"ph":"X","cat":', choices(names.codes.to_numpy(), kinds),
            ',"name":', texts(rows["name"]),
            ',"tid":', numbers(rows["track"]),
            ',"ts":', trace.since_origin(start),
            ',"dur":', microseconds(np.maximum(rows["end_ns"].to_numpy(np.int64) - start, 0)),
            ',"args":{"correlation":', numbers(rows["correlation"]), "}",
        )  # fmt: skip
    for part in slices(len(calls.ranges)):
        rows = calls.ranges.iloc[part]
        start = rows["start_ns"].to_numpy(np.int64)
        trace.write(
            '{"ph":"X","cat":"user_annotation","name":', texts(rows["path"]),
            ',"tid":', numbers(rows["track"]),
            ',"ts":', trace.since_origin(start),
            ',"dur":', microseconds(np.maximum(rows["end_ns"].to_numpy(np.int64) - start, 0)),
            ',"args":{"step":', numbers(rows["step"], none=-1),
            ',"layer":', numbers(rows["layer"], none=-1), "}",
        )  # fmt: skip


def _tracks(trace: RankTrace, thread: Int64s, start: Int64s, end: Int64s) -> Int64s:
    """The track of each call: one a thread, and one more where calls overlap without nesting."""
    found = np.empty(len(thread), np.int64)
    order = np.lexsort((-end, start, thread))
    groups = np.split(order, np.flatnonzero(np.diff(thread[order]) != 0) + 1)
    for group in groups if len(order) else ():
        number = int(thread[group[0]])
        lane = lanes(start[group], end[group], nested=True)
        tracks = [trace.tracks.add(f"thread {number}", number)] + [
            trace.tracks.add(f"thread {number} (overlap {index})")
            for index in range(1, int(lane.max()) + 1)
        ]
        found[group] = np.array(tracks, np.int64)[lane]
    return found


def _category(api: str) -> str:
    """The word of libkineto for an API call: driver calls begin with cu and no d."""
    return "cuda_driver" if api.startswith("cu") and not api.startswith("cuda") else "cuda_runtime"

"""Writes sampled stacks for speedscope.app: those in the gaps, and all of each thread."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, BinaryIO

import msgspec
import numpy as np
import pandas as pd

from spark_prof.analyzers.host.host_gaps import Gaps, stacks_of
from spark_prof.analyzers.host.host_summary import engine_of, host_table
from spark_prof.analyzers.summary import summary_of
from spark_prof.errors import CommandError
from spark_prof.exporters.table_folder import Selection
from spark_prof.traces.bundle import Bundle, own_version
from spark_prof.traces.readers.py_spy import frames_of

_SCHEMA = "https://www.speedscope.app/file-format-schema.json"


class _Frames:
    """The frames of a file, each once."""

    def __init__(self) -> None:
        self._place: dict[tuple[str, str], int] = {}
        self._of_stack: dict[str, list[int]] = {}

    def of(self, stack: str) -> list[int]:
        """The places of a stack's frames."""
        if stack not in self._of_stack:
            places = [self._place.setdefault(f, len(self._place)) for f in frames_of(stack)]
            self._of_stack[stack] = places
        return self._of_stack[stack]

    def rows(self) -> list[dict[str, str]]:
        """The frames as the file lists them."""
        return [{"name": function, "file": file} for file, function in self._place]


def write_speedscope(bundle: Bundle, selection: Selection, file: BinaryIO) -> None:
    """Writes the gaps of each chosen rank first, then every thread that was looked at.

    A sample weighs the time to the next look. Raises a CommandError where there are no samples.
    """
    samples = host_table(bundle, "stacks")
    if samples.empty:
        raise CommandError(
            f"{bundle.label} has no sampled stacks; record them with spark-prof record --host"
        )
    frames = _Frames()
    profiles = [*_gaps(bundle, selection, samples, frames), *_threads(samples, frames)]
    value = {
        "$schema": _SCHEMA,
        "exporter": f"spark-prof {own_version()}",
        "name": "stacks of the host",
        "shared": {"frames": frames.rows()},
        "profiles": profiles,
        "activeProfileIndex": 0,
    }
    file.write(msgspec.json.encode(value))


def _gaps(
    bundle: Bundle, selection: Selection, samples: pd.DataFrame, frames: _Frames
) -> Iterator[dict[str, Any]]:
    for rank in selection.ranks_of(bundle):
        facts = summary_of(bundle, rank).facts
        stacks = stacks_of(samples, f"rank{rank}", engine_of(bundle, rank))
        times = stacks["time_ns"].to_numpy(np.int64)
        if facts.timed and len(times):
            *_, in_gap = Gaps.of(facts.placed, facts.steps).around(times)
            yield _profile(f"rank{rank}, while nothing runs", stacks[in_gap], frames, weigh=False)


def _threads(samples: pd.DataFrame, frames: _Frames) -> Iterator[dict[str, Any]]:
    keys = [samples["process"].astype(str), samples["main"], samples["thread"]]
    for (process, main, thread), rows in samples.groupby(keys, sort=True):
        name = f"{process}, its first thread" if main else f"{process}, thread {thread}"
        yield _profile(name, rows.sort_values("time_ns"), frames, weigh=True)


def _profile(name: str, rows: pd.DataFrame, frames: _Frames, *, weigh: bool) -> dict[str, Any]:
    texts = rows["stack"].astype(str).tolist()
    times = rows["time_ns"].to_numpy(np.int64)
    weights = np.ones(len(times))
    if weigh and len(times) > 1:
        apart = np.diff(times)
        usual = float(np.median(apart))
        # Between two runs of py-spy nobody looked.
        weights = np.append(np.where(apart > 8 * usual, usual, apart), usual)
    return {
        "type": "sampled",
        "name": name,
        "unit": "nanoseconds" if weigh else "none",
        "startValue": 0,
        "endValue": float(weights.sum()),
        "samples": [frames.of(text) for text in texts],
        "weights": weights.tolist(),
    }

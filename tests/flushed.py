"""Counts what was flushed into a folder of pieces, and finds what of it a bundle lacks.

It reads the files by itself, with NumPy and json, so that the code under test cannot agree with its
own mistakes. docs/salvage.md says what flushed means.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np

from spark_prof.traces.bundle import Bundle

GPU = ("kernel", "gpu_memcpy", "gpu_memset")


@dataclass
class Flushed:
    """The records of the files with a final name, by rank.

    Attributes:
        steps: (step, key, start, end) of every step.
        events: how many enter and leave events; two make a range.
        kernels: (name, start) of what the GPU ran, and of every operator of the steps' thread.
        engine: (key, schedule, update) of every iteration, by replica.
    """

    steps: dict[int, Counter[Any]] = field(default_factory=dict)
    events: Counter[int] = field(default_factory=Counter)
    kernels: dict[int, Counter[Any]] = field(default_factory=dict)
    engine: dict[int, Counter[Any]] = field(default_factory=dict)

    @property
    def empty(self) -> bool:
        """Whether there is nothing that a bundle can be made of."""
        return not (any(self.steps.values()) or any(self.kernels.values()) or self.events)

    def count(self) -> tuple[int, int, int]:
        """How many steps, kernels and iterations there are."""
        parts = (self.steps, self.kernels, self.engine)
        steps, kernels, engine = (sum(map(Counter.total, part.values())) for part in parts)
        return steps, kernels, engine


def flushed_in(pieces: Path) -> Flushed:
    """Reads every file with a final name; a damaged one is an error of the caller."""
    found = Flushed()
    threads: dict[int, int] = {}
    for path in sorted(pieces.glob("rank*.*.steps.npy")):
        rows = np.load(path)
        rank = _number(path, "rank")
        threads.setdefault(rank, int(rows["thread"][0]))
        keys = zip(*(rows[c].tolist() for c in ("step", "key", "start_ns", "end_ns")), strict=True)
        found.steps.setdefault(rank, Counter()).update(keys)
    for path in pieces.glob("rank*.*.events.npy"):
        found.events[_number(path, "rank")] += len(np.load(path))
    for path in pieces.glob("rank*.*.kineto.json"):
        rank = _number(path, "rank")
        # As floats, microseconds of a few months no longer tell every nanosecond.
        trace = json.loads(path.read_text(), parse_float=Decimal)
        base = int(trace["baseTimeNanoseconds"])
        found.kernels.setdefault(rank, Counter()).update(
            (e["name"], base + int(e["ts"] * 1000))
            for e in trace["traceEvents"]
            if e.get("cat") in GPU
            or (e.get("cat") == "cpu_op" and e["tid"] == threads.get(rank, e["tid"]))
        )
    for path in pieces.glob("engine*.*.engine.npy"):
        rows = np.load(path)
        keys = zip(*(rows[c].tolist() for c in ("key", "schedule_ns", "update_ns")), strict=True)
        found.engine.setdefault(_number(path, "engine"), Counter()).update(keys)
    return found


def lacking(found: Flushed, bundle: Bundle) -> list[str]:
    """One line about each kind of record of which the bundle has not exactly the same."""
    lines = []
    for rank, steps in found.steps.items():
        frame = bundle.frame("steps", rank, ["step", "key", "start_ns", "end_ns"])
        lines += _difference(f"rank {rank}: steps", steps, Counter(frame.itertuples(index=False)))
    for rank, kernels in found.kernels.items():
        frame = bundle.frame("kernels", rank, ["name", "start_ns", "part"])
        first = frame.loc[frame["part"] == 0, ["name", "start_ns"]]
        there = Counter(first.itertuples(index=False))
        lines += _difference(f"rank {rank}: kernels", kernels, there)
    for index, rows in found.engine.items():
        frame = bundle.frame("engine", index, ["key", "schedule_ns", "update_ns"])
        lines += _difference(f"engine {index}", rows, Counter(frame.itertuples(index=False)))
    for rank, count in found.events.items():
        ranges = len(bundle.arrow("ranges", rank))
        if 2 * ranges < count - 1:  # the last call of a killed process has no end
            lines.append(f"rank {rank}: {count} events, but {ranges} ranges")
    return lines


def _difference(what: str, wanted: Counter[Any], there: Counter[Any]) -> list[str]:
    wanted, there = (Counter({tuple(k): n for k, n in c.items()}) for c in (wanted, there))
    gone, more = wanted - there, there - wanted
    if not gone and not more:
        return []
    sample = next(iter(gone or more))
    return [f"{what}: {gone.total()} are lost and {more.total()} made up, such as {sample}"]


def _number(path: Path, kind: str) -> int:
    return int(path.name.split(".")[0].removeprefix(kind))

"""A parallel run played by the rules of collectives, with offsets and slow ranks that are known."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from tests.support import ORIGIN

KINDS = ("all_reduce", "all_reduce", "all_gather")


@dataclass
class Play:
    """What ranks record that compute, meet in three collectives a step, and compute again."""

    ranks: int = 4
    steps: int = 40
    seed: int = 0
    # For a step the rank whose compute takes half as long again.
    slow: Mapping[int, int] = field(default_factory=dict)
    # By how much each rank's clock is ahead at the start.
    offset_ns: Mapping[int, int] = field(default_factory=dict)
    drift: Mapping[int, float] = field(default_factory=dict)  # by how much that grows, in ns per ns
    compute_ns: int = 100_000  # one stretch between two collectives
    transfer_ns: int = 10_000
    # What a rank needs besides before the collective at a place of a step: (step, place, rank).
    extra_ns: Callable[[int, int, int], float] = lambda *_: 0.0
    prefills: frozenset[int] = frozenset()  # steps that only read prompts
    batch: Mapping[int, int] = field(default_factory=dict)  # requests of a step, where not one

    def __post_init__(self) -> None:
        rng = np.random.default_rng(self.seed)
        ready = np.zeros(self.ranks)
        rows = []
        for step in range(self.steps):
            for place, kind in enumerate(KINDS):
                compute = self.compute_ns * rng.uniform(0.9, 1.1, self.ranks)
                if step in self.slow:
                    compute[self.slow[step]] *= 1.5
                compute += [self.extra_ns(step, place, rank) for rank in range(self.ranks)]
                start = ready + compute
                ready = start.max() + self.transfer_ns * rng.uniform(1.0, 1.2, self.ranks)
                rows += [(rank, step, kind, start[rank], ready[rank]) for rank in range(self.ranks)]
        true = pd.DataFrame(rows, columns=["rank", "step", "kind", "start_ns", "end_ns"])
        for name in ("start_ns", "end_ns"):
            true[name] = true[name].astype(np.int64)
        self.true = true
        self.keys = np.random.default_rng(self.seed + 1).permutation(10_000)[: self.steps]

    def clock_error(self, rank: int, time: pd.Series) -> pd.Series:
        """By how much the rank's clock is ahead at these true times."""
        return self.offset_ns.get(rank, 0) + self.drift.get(rank, 0.0) * time

    def calls(self) -> dict[int, pd.DataFrame]:
        """What each rank recorded, by its own clock."""
        found = {}
        for rank, part in self.true.groupby("rank"):
            part = part.drop(columns="rank").reset_index(drop=True)
            for name in ("start_ns", "end_ns"):
                error = self.clock_error(int(str(rank)), part[name])
                part[name] = part[name] + error.round().astype(np.int64) + ORIGIN
            found[int(str(rank))] = part
        return found

    def numbered(self) -> dict[int, pd.DataFrame]:
        """The steps of each rank."""
        steps = pd.DataFrame({"step": range(self.steps), "key": self.keys})
        return dict.fromkeys(range(self.ranks), steps)

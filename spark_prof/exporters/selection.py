"""Which part of a bundle is exported."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import pandas as pd

from spark_prof.arrays import Flags
from spark_prof.errors import CommandError
from spark_prof.traces.bundle import Bundle

_STEPS = re.compile(r"([0-9]{0,9}):([0-9]{0,9})")


@dataclass(frozen=True)
class Selection:
    """A part of a bundle; by default all of it."""

    ranks: tuple[int, ...] | None = None  # the ranks, None for all
    first: int | None = None  # the first step, None for no limit
    stop: int | None = None  # the step after the last one, None for no limit

    @property
    def all_steps(self) -> bool:
        """Whether no step is left out; what belongs to no step then counts too."""
        return self.first is None and self.stop is None

    @property
    def whole(self) -> bool:
        """Whether nothing is left out."""
        return self.all_steps and self.ranks is None

    def ranks_of(self, bundle: Bundle) -> tuple[int, ...]:
        """The bundle's ranks that are selected."""
        ranks = bundle.ranks if self.ranks is None else tuple(sorted(set(self.ranks)))
        for rank in ranks:
            if rank not in bundle.ranks:
                there = ", ".join(map(str, bundle.ranks)) or "none"
                raise CommandError(f"{bundle.label} has no rank {rank}; it has {there}")
        return ranks

    def rows(self, step: pd.Series) -> Flags:
        """Which rows are selected, by their step."""
        number = step.to_numpy(np.int64)
        if self.all_steps:
            return np.ones(len(number), bool)
        first = max(self.first or 0, 0)
        inside: Flags = (number >= first) & (
            number < (np.iinfo(np.int64).max if self.stop is None else self.stop)
        )
        return inside


def parse_steps(text: str) -> tuple[int | None, int | None]:
    """Reads `A:B`, from step A up to but not including step B; either may be left out."""
    match = _STEPS.fullmatch(text)
    if match is None:
        raise CommandError(f"--steps {text!r:.40} is no A:B; write 10:20 for steps 10 to 19")
    first, stop = (int(part) if part else None for part in match.groups())
    if first is not None and stop is not None and first >= stop:
        raise CommandError(f"--steps {text} holds no step; write the lower number first")
    return first, stop

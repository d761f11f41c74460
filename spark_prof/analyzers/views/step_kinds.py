"""Which steps a page looks at: those of a phase, of a batch size, or all."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from spark_prof.vocabulary import PHASES

_MOST_SIZES = 12


@dataclass(frozen=True)
class StepKind:
    """Some of the analyzed steps.

    Attributes:
        phase: of `vocabulary.PHASES`, or all.
        batch: how many requests decode in them, None for any number.
        steps: how many there are.
    """

    phase: str
    batch: int | None
    steps: int

    @property
    def word(self) -> str:
        """In an address: the phase, and the batch size behind a hyphen."""
        return self.phase if self.batch is None else f"{self.phase}-{self.batch}"

    def of(self, steps: pd.DataFrame) -> npt.NDArray[np.bool_]:
        """Which steps these are.

        Args:
            steps: the analyzed ones, with phase and decode_requests.
        """
        if self.phase == "all":
            return np.ones(len(steps), bool)
        chosen: npt.NDArray[np.bool_] = np.asarray(steps["phase"] == self.phase, bool)
        if self.batch is not None:
            chosen = np.logical_and(chosen, steps["decode_requests"].to_numpy() == self.batch)
        return chosen


def kinds_of(steps: pd.DataFrame) -> tuple[StepKind, ...]:
    """What can be chosen, the most telling first: decode, its batch sizes, other phases, all.

    Args:
        steps: the analyzed ones, with phase and decode_requests.
    """
    phase = steps["phase"].astype(str)
    found = []
    for name in ("decode", *(name for name in PHASES if name != "decode")):
        mine = steps[phase == name]
        if mine.empty:
            continue
        found.append(StepKind(name, None, len(mine)))
        sizes, counts = np.unique(mine["decode_requests"].to_numpy(np.int64), return_counts=True)
        if name == "decode" and len(sizes) > 1:
            common = np.sort(np.argsort(-counts, kind="stable")[:_MOST_SIZES])
            found += [StepKind(name, int(sizes[own]), int(counts[own])) for own in common]
    phases = {kind.phase for kind in found}
    return (*found, StepKind("all", None, len(steps))) if len(phases) != 1 else tuple(found)

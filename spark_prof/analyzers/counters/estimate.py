"""Amounts of sets of kernels, with an error that covers replays and the course within a kernel."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import pandas as pd

from spark_prof.analyzers.counters.folding import MOST_SLOTS, Calls, Equations, Folded
from spark_prof.analyzers.counters.slots import in_parts

RESOLVED = 0.9
"""A slot counts as determined where the samples, not the ridge, make this much of its amount."""

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]


class Estimate:
    """Each quantity divided among slots, once with even kernels and once with kernels in parts.

    Args:
        begin: when each sample began, ascending.
        finish: when it ended.
        quantities: by name, what each sample counted.
        calls: the kernels.
        slots: what analyzers.counters.slots.slotted says about their slots.

    Attributes:
        slots: the slots.
        resolved: for each slot, 1 where the samples alone determine it, 0 where they say nothing.
    """

    def __init__(
        self,
        begin: Integers,
        finish: Integers,
        quantities: Mapping[str, Floats],
        calls: Calls,
        slots: pd.DataFrame,
    ) -> None:
        cut, self._owner = in_parts(calls, slots, float(np.median(finish - begin)), MOST_SLOTS)
        whole = Equations(begin, finish, calls, len(slots))
        parts = Equations(begin, finish, cut, len(self._owner))
        self._whole = {name: whole.solve(sampled) for name, sampled in quantities.items()}
        self._parts = {name: parts.solve(sampled) for name, sampled in quantities.items()}
        self.slots = slots
        # Which parts are told apart matters less than whether their sum is.
        self.resolved = whole.resolved

    @property
    def resolved_share(self) -> float:
        """Share of a step's kernel time in slots that the samples determine."""
        time = (self.slots["us"] * self.slots["count"]).to_numpy()
        return float(time[self.resolved >= RESOLVED].sum() / max(time.sum(), 1e-9))

    def folded(self, name: str) -> Folded | None:
        """The whole solution of a quantity."""
        return self._parts.get(name)

    def of(self, name: str, weights: Floats) -> tuple[float, float] | None:
        """The weighted sum of a quantity over slots and its standard error; None if not sampled."""
        if name not in self._parts:
            return None
        of_part = weights[self._owner]
        amount = float(of_part @ self._parts[name].amount)
        # What a constant course within each kernel would give instead shows how much hangs on it.
        otherwise = float(weights @ self._whole[name].amount)
        return amount, float(np.hypot(self._parts[name].error(of_part), amount - otherwise))

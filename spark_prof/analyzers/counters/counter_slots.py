"""The calls that share an amount, and their amounts with an error.

Calls that share one are the same kernel of the same step, replayed. The error covers replays and
the course within a kernel.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from spark_prof.analyzers.counters.folding import MOST_SLOTS, Calls, Equations, Folded

_MOST_PARTS = 8
_FEWEST_PARTS = 3


@dataclass(frozen=True)
class Slotted:
    """The kernels of steps that are alike."""

    calls: Calls  # one entry a kernel
    # One row a slot: name, component, us (mean duration) and count (calls a step).
    slots: pd.DataFrame


def sampled_steps(kernels: pd.DataFrame, begin: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """The steps during whose kernels a sample began."""
    spans = kernels[kernels["step"] >= 0].groupby("step").agg({"start_ns": "min", "end_ns": "max"})
    first = np.searchsorted(begin, spans["start_ns"])
    last = np.searchsorted(begin, spans["end_ns"])
    found: npt.NDArray[np.int64] = spans.index[last > first].to_numpy(np.int64)
    return found


def slotted(kernels: pd.DataFrame, *, nodes: bool) -> Slotted:
    """Gives each kernel its slot.

    Args:
        kernels: name, component, layer, start_ns, end_ns, step and graph_node of alike steps.
        nodes: a slot is a graph node and name, and which of those it is in its step; a replay is
            a step. Else a slot is all calls of a name for a component, whatever their layer; a
            replay is a layer of a step.
    """
    ordered = kernels.sort_values(["step", "start_ns"], kind="stable")
    keys = ["name", "component"] + (["graph_node"] if nodes else [])
    # One number a kind of kernel, then one a place: categories would multiply otherwise.
    slot = ordered.groupby(keys, observed=True, sort=False).ngroup()
    replay = ordered["step"]
    if nodes:
        turn = ordered.assign(kind=slot).groupby(["step", "kind"], sort=False).cumcount()
        slot = ordered.assign(kind=slot, turn=turn).groupby(["kind", "turn"], sort=False).ngroup()
    else:
        replay = ordered.groupby(["step", "layer"], sort=False).ngroup()
    start, end = (ordered[name].to_numpy(np.int64) for name in ("start_ns", "end_ns"))
    numbers = slot.to_numpy().astype(np.int64), replay.to_numpy().astype(np.int64)
    rows = ordered.assign(slot=slot, us=(end - start) / 1e3).groupby("slot", sort=True)
    slots = rows.agg(
        name=("name", "first"), component=("component", "first"),
        us=("us", "mean"), count=("us", "size"),
    )  # fmt: skip
    steps = max(ordered["step"].nunique(), 1)
    return Slotted(Calls(start, end, *numbers), slots.assign(count=slots["count"] / steps))


def in_parts(
    calls: Calls, slots: pd.DataFrame, interval_ns: float, most: int
) -> tuple[Calls, npt.NDArray[np.int64]]:
    """Cuts each call into parts that count for themselves: a kernel's traffic is not even.

    Args:
        most: how many parts there may be altogether; all calls stay whole where that is too few.

    Returns:
        The parts as calls, and for each of their slots the slot it is a part of.
    """
    wanted = np.ceil(slots["us"].to_numpy() * 1e3 / interval_ns)
    parts = np.clip(wanted, _FEWEST_PARTS, _MOST_PARTS).astype(np.int64)
    if parts.sum() > most:
        parts = np.full(
            len(slots), max(1, min(_FEWEST_PARTS, most // max(len(slots), 1))), np.int64
        )
    first = np.cumsum(parts) - parts
    count = parts[calls.slot]
    call = np.repeat(np.arange(len(count)), count)
    number = np.arange(len(call)) - np.repeat(np.cumsum(count) - count, count)
    start, length, of = calls.start_ns[call], (calls.end_ns - calls.start_ns)[call], count[call]
    cut = Calls(
        (start + length * number // of).astype(np.int64),
        (start + length * (number + 1) // of).astype(np.int64),
        first[calls.slot[call]] + number,
        calls.step[call],
    )
    return cut, np.repeat(np.arange(len(parts)), parts)


RESOLVED = 0.9
"""A slot counts as determined where the samples, not the ridge, make this much of its amount."""

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]


class Estimate:
    """Each quantity divided among slots, once with even kernels and once with kernels in parts.

    Args:
        quantities: by name, what each sample counted.

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

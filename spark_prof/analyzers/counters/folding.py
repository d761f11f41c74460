"""What each kernel of a repeated step moves, although kernels are shorter than the samples.

A kernel that is replayed at another phase of the sampling each time is cut elsewhere each time.
So what a sample counted is a sum over the kernels it overlaps, of the kernel's whole amount times
the share of its duration inside the sample, plus a rate for time without kernels. All calls of a
kernel (a slot: the same graph node, or the same place in a step) share one unknown amount, which
gives far more equations than unknowns: they are solved by least squares without negative amounts.
Uncertainty comes from how the replays disagree (the cluster-robust covariance of Liang and Zeger,
Biometrika 73, 1986, one cluster a step).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from spark_prof.analyzers.counters.least_squares import gram, not_negative
from spark_prof.analyzers.counters.overlap import overlaps, uncovered

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]

MOST_SLOTS = 4000
"""The equations are dense: a square matrix of that side takes 128 MB."""

_WHOLE = 100.0
"""Weight of the equation for the sum of all samples, over that of a sample.

Without it kernels whose traffic is not even come out too large: 2 % on an H100.
"""

_RIDGE = 1e-4
"""Of the mean diagonal: pulls what the samples leave open towards the amounts by time."""


@dataclass(frozen=True)
class Calls:
    """Kernels that ran, one entry a call.

    Attributes:
        start_ns: start.
        end_ns: end.
        slot: which calls share an amount, 0 to slots - 1.
        step: which calls belong to one replay.
    """

    start_ns: Integers
    end_ns: Integers
    slot: Integers
    step: Integers

    def shifted(self, ns: int) -> Calls:
        """The same calls that much later."""
        return Calls(self.start_ns + ns, self.end_ns + ns, self.slot, self.step)


@dataclass(frozen=True)
class Folded:
    """Amounts by slot of one sampled quantity.

    Attributes:
        amount: what one call moves or does.
        influence: each step's part in each amount's error; see `error`.
        idle_rate: amount per nanosecond without any kernel.
        conserved: what amounts and idle time explain, over what was sampled.
    """

    amount: Floats
    influence: Floats
    idle_rate: float
    conserved: float

    def error(self, weights: Floats) -> float:
        """Standard error of the sum of amounts with those weights; NaN for fewer than 2 steps."""
        steps = self.influence.shape[1]
        if steps < 2:
            return float("nan")
        spread = float(np.sqrt(np.square(weights @ self.influence).sum()))
        return spread * float(np.sqrt(steps / (steps - 1)))


class Equations:
    """One equation a sample, ready to be solved for any quantity that was sampled.

    Args:
        begin: when each sample began, ascending.
        finish: when it ended.
        calls: the kernels that ran meanwhile.
        slots: how many slots there are, at most MOST_SLOTS.

    Attributes:
        seen: calls of each slot that the samples saw, parts as fractions.
    """

    def __init__(self, begin: Integers, finish: Integers, calls: Calls, slots: int) -> None:
        self._slots = slots
        self._pairs = overlaps(begin, finish, calls.start_ns, calls.end_ns)
        self._slot = calls.slot[self._pairs.kernel]
        duration = np.maximum(calls.end_ns - calls.start_ns, 1)
        self._share = self._pairs.ns / duration[self._pairs.kernel]
        self.seen = np.bincount(self._slot, self._share, slots).astype(np.float64)
        idle = uncovered(begin, finish, calls.start_ns, calls.end_ns).astype(np.float64)
        with_idle = np.flatnonzero(idle)
        # One row a sample; the last column is time without kernels.
        self._row = np.concatenate([self._pairs.sample, with_idle])
        self._column = np.concatenate([self._slot, np.full(len(with_idle), slots)])
        self._value = np.concatenate([self._share, idle[with_idle] / 1e3])
        self._step = np.zeros(len(begin), np.int64)
        numbers = np.unique(calls.step, return_inverse=True)[1]
        self._step[self._pairs.sample] = numbers[self._pairs.kernel]
        self._sums = np.bincount(self._column, self._value, slots + 1).astype(np.float64)
        # One more equation: what all kernels move together is what all samples counted.
        self._whole = _WHOLE / max(len(begin), 1)
        normal = gram(self._row, self._column, self._value, slots + 1)
        normal += self._whole * np.outer(self._sums, self._sums)
        self._scale = np.sqrt(np.maximum(np.diag(normal), 1e-12))
        self._normal = normal / np.outer(self._scale, self._scale)
        self._normal[np.diag_indices(slots + 1)] += _RIDGE

    @cached_property
    def resolved(self) -> Floats:
        """For each slot 1 where the samples alone determine it, 0 where they say nothing."""
        uncertain = _RIDGE * np.diag(np.linalg.inv(self._normal))[: self._slots]
        found: Floats = np.where(self.seen > 0, 1 - uncertain, 0.0)
        return found

    def unexplained(self, sampled: Floats) -> float:
        """Share of the samples' variance that no amounts explain."""
        missed = sampled - self._explained(self._amounts(sampled)[0])
        return float(missed.var() / sampled.var()) if sampled.var() else 0.0

    def solve(self, sampled: Floats) -> Folded:
        """Divides what was sampled among the slots.

        Args:
            sampled: the quantity in each sample, such as bytes.
        """
        amount, free = self._amounts(sampled)
        explained = self._explained(amount)
        missed = sampled - explained
        steps = int(self._step.max(initial=-1)) + 1
        shape = (self._slots + 1, steps)
        where = self._column * steps + self._step[self._row]
        scores = np.bincount(where, self._value * missed[self._row], shape[0] * steps)
        influence = np.zeros(shape)
        scaled = scores.reshape(shape)[free] / self._scale[free, None]
        solved = np.linalg.solve(self._normal[np.ix_(free, free)], scaled)
        influence[free] = solved / self._scale[free, None]
        total = float(sampled.sum())
        return Folded(
            amount=amount[:-1],
            influence=influence[:-1],
            idle_rate=float(amount[-1]) / 1e3,
            conserved=float(explained.sum()) / total if total else float("nan"),
        )

    def _amounts(self, sampled: Floats) -> tuple[Floats, npt.NDArray[np.bool_]]:
        """The amounts with that of idle time last, and which of them are not held at 0."""
        target = np.bincount(self._column, self._value * sampled[self._row], self._slots + 1)
        target = target + self._whole * sampled.sum() * self._sums
        pull = _RIDGE * self._scale * self._by_time(sampled)
        solved, free = not_negative(self._normal, target / self._scale + pull)
        return solved / self._scale, free

    def _explained(self, amount: Floats) -> Floats:
        parts = self._value * amount[self._column]
        return np.bincount(self._row, parts, len(self._step)).astype(np.float64)

    def _by_time(self, sampled: Floats) -> Floats:
        """Amounts if each sample belonged to its kernels in proportion to their time in it."""
        sample, ns = self._pairs.sample, self._pairs.ns
        busy = np.bincount(sample, ns, len(sampled))
        part = sampled[sample] * ns / np.maximum(busy[sample], 1)
        sums = np.bincount(self._slot, part, self._slots)
        amounts: Floats = np.append(sums / np.maximum(self.seen, 1e-9), 0.0)
        return amounts

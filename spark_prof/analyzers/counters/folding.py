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

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from spark_prof.analyzers.step_accounting import covered_in
from spark_prof.arrays import Flags, Floats, Int64s

Integers = Int64s

MOST_SLOTS = 4000  # the equations are dense: a square matrix of that side takes 128 MB

_WHOLE = 100.0
"""Weight of the equation for the sum of all samples, over that of a sample.

Without it kernels whose traffic is not even come out too large: 2 % on an H100.
"""

_RIDGE = 1e-4  # of the mean diagonal: pulls what the samples leave open towards the amounts by time

_ROUNDS = 24
_TINY = 1e-6  # of the largest unknown: one that is less far below 0 is taken for 0


def gram(row: Integers, column: Integers, value: Floats, size: int) -> Floats:
    """The product of the matrix's transpose with itself, from its entries."""
    order = np.argsort(row, kind="stable")
    row, column, value = row[order], column[order], value[order]
    total = np.zeros(size * size)
    # Entries of one row are neighbours: pair each with the next, the one after, and so on.
    apart = 0
    while True:
        same = row[apart:] == row[: len(row) - apart]
        if not same.any():
            return total.reshape(size, size)
        left, right = column[: len(row) - apart][same], column[apart:][same]
        product = (value[: len(row) - apart] * value[apart:])[same]
        total += np.bincount(left * size + right, weights=product, minlength=size * size)
        if apart:
            total += np.bincount(right * size + left, weights=product, minlength=size * size)
        apart += 1


def not_negative(normal: Floats, target: Floats) -> tuple[Floats, Flags]:
    """Solves normal @ x = target under x >= 0; returns x and which of it is not held at 0.

    Block principal pivoting: Kim and Park, SIAM Journal on Scientific Computing 33 (2011).
    """
    free = np.ones(len(target), bool)
    x = np.zeros(len(target))
    for attempt in range(_ROUNDS):
        x[:] = 0.0
        x[free] = np.linalg.solve(normal[np.ix_(free, free)], target[free])
        slope = normal @ x - target
        wrong = np.where(
            free,
            x < -_TINY * np.abs(x).max(initial=0.0),
            slope < -_TINY * np.abs(target).max(initial=0.0),
        )
        if not wrong.any():
            break
        if attempt > _ROUNDS // 2:
            # All at once may go round in circles; one at a time cannot.
            wrong[: np.flatnonzero(wrong)[-1]] = False
        free ^= wrong
    return np.maximum(x, 0.0), free


def overlaps(
    begin: Integers, finish: Integers, start: Integers, end: Integers
) -> tuple[Integers, Integers, Integers]:
    """All overlapping pairs of samples and kernels: both indices, and for how many ns both lasted.

    Samples ascend and do not overlap each other; kernels may. The pairs are in the kernels' order.
    """
    first = np.searchsorted(finish, start, side="right")
    counts = np.maximum(np.searchsorted(begin, end, side="left") - first, 0)
    kernel = np.repeat(np.arange(len(start)), counts)
    within = np.arange(len(kernel)) - np.repeat(np.cumsum(counts) - counts, counts)
    sample = first[kernel] + within
    ns = np.minimum(finish[sample], end[kernel]) - np.maximum(begin[sample], start[kernel])
    return sample, kernel, ns


def parts_by_time(sample: Integers, ns: Integers, sampled: Floats) -> Floats:
    """What each pair has of its sample, if all kernels in it move alike and idle time nothing."""
    busy = np.bincount(sample, ns, len(sampled))
    parts: Floats = sampled[sample] * ns / np.maximum(busy[sample], 1)
    return parts


LONG = 10  # a kernel that lasts so many samples loses or gains at most a tenth at its two ends


def amounts_by_time(
    begin: Integers, finish: Integers, sampled: Floats, start: Integers, end: Integers
) -> Floats:
    """The samples' amounts, divided among the kernels in proportion to the time in each sample.

    NaN for a kernel that lasts fewer than LONG samples, or that the samples do not cover.
    """
    if not len(begin):
        return np.full(len(start), np.nan)
    sample, kernel, ns = overlaps(begin, finish, start, end)
    amount = np.bincount(kernel, parts_by_time(sample, ns, sampled), len(start))
    covered = np.bincount(kernel, ns, len(start)) == end - start
    long = end - start >= LONG * np.median(finish - begin)
    return np.where(long & covered, amount, np.nan)


@dataclass(frozen=True)
class Calls:
    """Kernels that ran, one entry a call."""

    start_ns: Integers  # start
    end_ns: Integers  # end
    slot: Integers  # which calls share an amount, 0 to slots - 1
    step: Integers  # which calls belong to one replay

    def shifted(self, ns: int) -> Calls:
        """The same calls, moved by so many nanoseconds."""
        return Calls(self.start_ns + ns, self.end_ns + ns, self.slot, self.step)


@dataclass(frozen=True)
class Folded:
    """Amounts by slot of one sampled quantity."""

    amount: Floats  # what one call moves or does
    influence: Floats  # each step's part in each amount's error; see `error`
    idle_rate: float  # amount per nanosecond without any kernel
    conserved: float  # what amounts and idle time explain, over what was sampled

    def error(self, weights: Floats) -> float:
        """Standard error of the sum of amounts with those weights; NaN for fewer than 2 steps."""
        steps = self.influence.shape[1]
        if steps < 2:
            return float("nan")
        return float(np.linalg.norm(weights @ self.influence)) * math.sqrt(steps / (steps - 1))


class Equations:
    """One equation a sample, in order of time, to be solved for any quantity that was sampled."""

    def __init__(self, begin: Integers, finish: Integers, calls: Calls, slots: int) -> None:
        self._slots = slots
        self._sample, kernel, self._ns = overlaps(begin, finish, calls.start_ns, calls.end_ns)
        self._slot = calls.slot[kernel]
        share = self._ns / np.maximum(calls.end_ns - calls.start_ns, 1)[kernel]
        # Calls of each slot that the samples saw, parts as fractions.
        self.sampled_calls = np.bincount(self._slot, share, slots).astype(np.float64)
        idle = finish - begin - covered_in(calls.start_ns, calls.end_ns, begin, finish)
        with_idle = np.flatnonzero(idle)
        # One row a sample; the last column is time without kernels.
        self._row = np.concatenate([self._sample, with_idle])
        self._column = np.concatenate([self._slot, np.full(len(with_idle), slots)])
        self._value = np.concatenate([share, idle[with_idle] / 1e3])
        self._step = np.zeros(len(begin), np.int64)
        self._step[self._sample] = np.unique(calls.step, return_inverse=True)[1][kernel]
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
        shares: Floats = np.where(self.sampled_calls > 0, 1 - uncertain, 0.0)
        return shares

    def unexplained(self, sampled: Floats) -> float:
        """Share of the samples' variance that no amounts explain."""
        missed = sampled - self._explained(self._amounts(sampled)[0])
        return float(missed.var() / sampled.var()) if sampled.var() else 0.0

    def solve(self, sampled: Floats) -> Folded:
        """Divides what was sampled among the slots."""
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

    def _amounts(self, sampled: Floats) -> tuple[Floats, Flags]:
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
        parts = parts_by_time(self._sample, self._ns, sampled)
        sums = np.bincount(self._slot, parts, self._slots)
        amounts: Floats = np.append(sums / np.maximum(self.sampled_calls, 1e-9), 0.0)
        return amounts


_WIDEST_NS = 16_000
_FINEST_NS = 50
_MOST_CALLS = 4_000
_BETTER = 0.7
"""A lag is believed when it leaves less than this share of what no lag leaves unexplained.

Kernels read most at their begin and the least at their end, so that a wrong lag can fit a little
better than none: on an H100, whose clocks agree, one of -1 us leaves 0.95.
"""


def find_lag(begin: Integers, finish: Integers, sampled: Floats, calls: Calls, slots: int) -> int:
    """Nanoseconds to add to the kernels' times so that the samples fit them best; 0 for none."""
    steps = np.unique(calls.step)
    per_step = max(1, len(calls.step) // max(len(steps), 1))
    chosen = np.isin(calls.step, steps[: max(4, _MOST_CALLS // per_step)])
    few = Calls(*(item[chosen] for item in vars(calls).values()))
    if not len(few.start_ns):
        return 0
    low, high = few.start_ns.min() + _WIDEST_NS, few.end_ns.max() - _WIDEST_NS
    inside = (begin >= low) & (finish <= high)
    if inside.sum() < 2 * slots or not sampled[inside].any():
        return 0
    begin, finish, sampled = begin[inside], finish[inside], sampled[inside]

    @cache
    def left(lag: int) -> float:
        return Equations(begin, finish, few.shifted(lag), slots).unexplained(sampled)

    best, stride = 0, _WIDEST_NS // 8
    for lag in range(-_WIDEST_NS, _WIDEST_NS + 1, stride):
        best = min(best, lag, key=left)
    while stride > _FINEST_NS:
        stride //= 2
        best = min((best - stride, best, best + stride), key=left)
    return best if left(best) < _BETTER * left(0) else 0


_MOST_PARTS = 8
_FEWEST_PARTS = 3


def _in_parts(calls: Calls, slots: pd.DataFrame, interval_ns: float) -> tuple[Calls, Integers]:
    """Cuts each call into parts that count for themselves: a kernel's traffic is not even.

    Also returned is for each slot of the parts the slot that it is a part of.
    """
    samples = np.ceil(slots["us"].to_numpy() * 1e3 / interval_ns)
    parts = np.clip(samples, _FEWEST_PARTS, _MOST_PARTS).astype(np.int64)
    if parts.sum() > MOST_SLOTS:
        parts[:] = max(1, min(_FEWEST_PARTS, MOST_SLOTS // len(slots)))
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


class SlotEstimate:
    """Each quantity divided among slots, once with even kernels and once with kernels in parts.

    A row of `slots` has a slot's name, component, us (mean duration) and count (calls a step).
    """

    def __init__(
        self,
        begin: Integers,
        finish: Integers,
        quantities: Mapping[str, Floats],
        calls: Calls,
        slots: pd.DataFrame,
    ) -> None:
        cut, self._owner = _in_parts(calls, slots, float(np.median(finish - begin)))
        whole = Equations(begin, finish, calls, len(slots))
        parts = Equations(begin, finish, cut, len(self._owner))
        self._whole = {name: whole.solve(sampled) for name, sampled in quantities.items()}
        self.parts = {name: parts.solve(sampled) for name, sampled in quantities.items()}
        self.slots = slots
        # Which parts are told apart matters less than whether their sum is.
        self.resolved = whole.resolved

    def resolved_share(self, mine: npt.NDArray[Any] | slice = slice(None)) -> float:
        """Share of those slots' kernel time in a step that the samples determine."""
        time = (self.slots["us"] * self.slots["count"]).to_numpy()[mine]
        return float(time[self.resolved[mine] >= RESOLVED].sum() / max(time.sum(), 1e-9))

    def of(self, name: str, weights: Floats) -> tuple[float, float] | None:
        """The weighted sum of a quantity over slots and its standard error; None if not sampled."""
        if name not in self.parts:
            return None
        of_part = weights[self._owner]
        amount = float(of_part @ self.parts[name].amount)
        # What a constant course within each kernel would give instead shows how much hangs on it.
        otherwise = float(weights @ self._whole[name].amount)
        return amount, float(np.hypot(self.parts[name].error(of_part), amount - otherwise))

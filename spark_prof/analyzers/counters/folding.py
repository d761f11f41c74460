"""What each kernel of a repeated step moves, although kernels are shorter than the samples.

A kernel that is replayed at another phase of the sampling each time is cut elsewhere each time.
So what a sample counted is a sum over the kernels it overlaps, of the kernel's whole amount times
the share of its duration inside the sample, plus a rate for time without kernels. All calls of a
kernel (a slot: the same graph node, or the same place in a step) share one unknown amount, which
gives far more equations than unknowns: they are solved by least squares without negative amounts
(block principal pivoting, Kim and Park 2011). Uncertainty comes from how the replays disagree (the
cluster-robust covariance of Liang and Zeger 1986, one cluster a step).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from spark_prof.analyzers.counters.overlap import overlaps, uncovered

__all__ = ["MOST_SLOTS", "Calls", "Folded", "fold"]

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]

MOST_SLOTS = 4000
"""The equations are dense: a square matrix of that side takes 128 MB."""

_RIDGE = 1e-4
"""Of the mean diagonal: pulls what the samples leave open towards the amounts by time."""

_ROUNDS = 40


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
        resolved: 1 where the samples alone determine the amount, 0 where they say nothing.
        calls: calls that the samples saw, parts as fractions.
        idle_rate: amount per nanosecond without any kernel.
        conserved: what amounts and idle time explain, over what was sampled.
        residual: unexplained share of the samples' variance.
    """

    amount: Floats
    influence: Floats
    resolved: Floats
    calls: Floats
    idle_rate: float
    conserved: float
    residual: float

    def error(self, weights: Floats) -> float:
        """Standard error of the sum of amounts with those weights; NaN for fewer than 2 steps."""
        steps = self.influence.shape[1]
        if steps < 2:
            return float("nan")
        spread = float(np.sqrt(np.square(weights @ self.influence).sum()))
        return spread * float(np.sqrt(steps / (steps - 1)))


def fold(begin: Integers, finish: Integers, sampled: Floats, calls: Calls, slots: int) -> Folded:
    """Divides what was sampled among the slots.

    Args:
        begin: when each sample began, ascending.
        finish: when it ended.
        sampled: the quantity in each sample, such as bytes.
        calls: the kernels that ran meanwhile.
        slots: how many slots there are, at most MOST_SLOTS.
    """
    pairs = overlaps(begin, finish, calls.start_ns, calls.end_ns)
    duration = np.maximum(calls.end_ns - calls.start_ns, 1)
    share = pairs.ns / duration[pairs.kernel]
    idle = uncovered(begin, finish, calls.start_ns, calls.end_ns).astype(np.float64)
    with_idle = np.flatnonzero(idle)
    # One row a sample; the last column is time without kernels.
    row = np.concatenate([pairs.sample, with_idle])
    column = np.concatenate([calls.slot[pairs.kernel], np.full(len(with_idle), slots)])
    value = np.concatenate([share, idle[with_idle] / 1e3])
    step_of = np.zeros(len(begin), np.int64)
    step_of[pairs.sample] = np.unique(calls.step, return_inverse=True)[1][pairs.kernel]

    gram = _gram(row, column, value, slots + 1)
    target = np.bincount(column, weights=value * sampled[row], minlength=slots + 1)
    prior = _by_time(pairs.sample, calls.slot[pairs.kernel], pairs.ns, share, sampled, slots)
    prior = np.append(prior, 0.0)
    scale = np.sqrt(np.maximum(np.diag(gram), 1e-12))
    ridge = np.eye(slots + 1) * _RIDGE
    normal = gram / np.outer(scale, scale)
    solved, free = _not_negative(normal + ridge, target / scale + _RIDGE * prior * scale)
    amount = solved / scale

    explained = np.bincount(row, weights=value * amount[column], minlength=len(begin))
    missed = sampled - explained
    steps = int(step_of.max()) + 1 if len(step_of) else 0
    scores = np.bincount(
        column * steps + step_of[row], weights=value * missed[row], minlength=(slots + 1) * steps
    ).reshape(slots + 1, steps)
    inverse = np.zeros_like(normal)
    inverse[np.ix_(free, free)] = np.linalg.inv((normal + ridge)[np.ix_(free, free)])
    influence = (inverse @ (scores / scale[:, None])) / scale[:, None]
    seen = np.bincount(calls.slot[pairs.kernel], weights=share, minlength=slots).astype(np.float64)
    every = np.linalg.inv(normal + ridge)
    total = float(sampled.sum())
    return Folded(
        amount=amount[:slots],
        influence=influence[:slots],
        resolved=np.where(seen > 0, 1 - _RIDGE * np.diag(every)[:slots], 0.0),
        calls=seen,
        idle_rate=float(amount[slots]) / 1e3,
        conserved=float(explained.sum()) / total if total else float("nan"),
        residual=float(missed.var() / sampled.var()) if sampled.var() else 0.0,
    )


def _gram(row: Integers, column: Integers, value: Floats, size: int) -> Floats:
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


def _by_time(
    sample: Integers, slot: Integers, ns: Integers, share: Floats, sampled: Floats, slots: int
) -> Floats:
    """Amounts if each sample belonged to its kernels in proportion to their time in it."""
    busy = np.bincount(sample, weights=ns, minlength=len(sampled))
    part = sampled[sample] * ns / np.maximum(busy[sample], 1)
    sums = np.bincount(slot, weights=part, minlength=slots)
    calls = np.bincount(slot, weights=share, minlength=slots)
    amounts: Floats = sums / np.maximum(calls, 1e-9)
    return amounts


def _not_negative(normal: Floats, target: Floats) -> tuple[Floats, npt.NDArray[np.bool_]]:
    """Solves normal @ x = target under x >= 0; returns x and which of it is not held at 0."""
    free = np.ones(len(target), bool)
    x = np.zeros(len(target))
    tiny = 1e-9 * float(np.abs(target).max(initial=0.0))
    for attempt in range(_ROUNDS):
        x[:] = 0.0
        x[free] = np.linalg.solve(normal[np.ix_(free, free)], target[free])
        slope = normal @ x - target
        wrong = np.where(free, x < -tiny, slope < -tiny)
        if not wrong.any():
            break
        if attempt > _ROUNDS // 2:
            # All at once may go round in circles; one at a time cannot.
            wrong[: np.flatnonzero(wrong)[-1]] = False
        free ^= wrong
    return np.maximum(x, 0.0), free

"""By how much the counters' clock and the kernels' clock differ, from the data themselves."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from spark_prof.analyzers.counters.folding import Calls, Equations

_WIDEST_NS = 16_000
_FINEST_NS = 50
_MOST_CALLS = 4_000
_BETTER = 0.7
"""A lag is believed when it leaves less than this share of what no lag leaves unexplained.

Kernels read most at their begin and the least at their end, so that a wrong lag can fit a little
better than none: on an H100, whose clocks agree, one of -1 us leaves 0.95.
"""


def find_lag(
    begin: npt.NDArray[np.int64],
    finish: npt.NDArray[np.int64],
    sampled: npt.NDArray[np.float64],
    calls: Calls,
    slots: int,
) -> int:
    """Nanoseconds to add to the kernels' times so that the samples fit them best; 0 for none.

    Args:
        begin: when each sample began, ascending.
        finish: when it ended.
        sampled: the quantity in each sample.
        calls: the kernels.
        slots: how many slots they have.
    """
    steps = np.unique(calls.step)
    each = max(1, len(calls.step) // max(len(steps), 1))
    chosen = np.isin(calls.step, steps[: max(4, _MOST_CALLS // each)])
    few = Calls(*(item[chosen] for item in (calls.start_ns, calls.end_ns, calls.slot, calls.step)))
    if not len(few.start_ns):
        return 0
    low, high = few.start_ns.min() + _WIDEST_NS, few.end_ns.max() - _WIDEST_NS
    inside = (begin >= low) & (finish <= high)
    if inside.sum() < 2 * slots or not sampled[inside].any():
        return 0
    begin, finish, sampled = begin[inside], finish[inside], sampled[inside]

    known: dict[int, float] = {}

    def left(lag: int) -> float:
        if lag not in known:
            equations = Equations(begin, finish, few.shifted(lag), slots)
            known[lag] = equations.unexplained(sampled)
        return known[lag]

    best, stride = 0, _WIDEST_NS // 8
    for lag in range(-_WIDEST_NS, _WIDEST_NS + 1, stride):
        best = min(best, lag, key=left)
    while stride > _FINEST_NS:
        stride //= 2
        best = min((best - stride, best, best + stride), key=left)
    return best if left(best) < _BETTER * left(0) else 0

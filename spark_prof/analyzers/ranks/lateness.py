"""Which ranks come to their collectives later than the others, in usual decode steps, and how sure.

With equal ranks somebody comes last in every step, by chance, and one of two in most steps of many
a recording. What a repair could bring is the net difference: by how much more a rank comes late
than the others do, as mean over the steps. It is told with an interval and only where that leaves
zero out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from spark_prof.analyzers.model import Lateness
from spark_prof.analyzers.t_distribution import student_quantile
from spark_prof.arrays import Floats

PLACES = ("start", "inside")
"""Where a rank is late: at a step's first collective, which is what its host launched late, or at
those behind it."""

_FEWEST_STEPS = 16
_BLOCKS, _IN_BLOCK = 10, 4
_WRONG = 0.02  # chance that a recording of equal ranks blames any, over all ranks of a group
_UNUSUAL = 3.0  # times the median of its batch size: the first use of a kernel, or a pause
_MOST_ALIKE = 0.98


@dataclass(frozen=True)
class ConfidenceInterval:
    """A mean and the interval in which the true one lies, at a confidence."""

    mean: float
    low: float
    high: float


def interval_of_mean(values: Floats, wrong: float) -> ConfidenceInterval:
    """The mean of values that follow each other in time, which need not be independent.

    By Student's t, from what is left without a steady drift: by how much neighbours are alike and,
    of many values, by the means of ten blocks, whichever is wider. Of [1.0, 3.0] * 20 it is 2.

    Args:
        values: at least 8, in the order in which they were taken.
        wrong: chance that the true mean lies outside, on either side.
    """
    mean, number = float(values.mean()), len(values)
    time = np.arange(number) - (number - 1) / 2
    rest = values - mean - time * float(time @ values) / float(time @ time)
    squares = float(rest @ rest)
    correlation = float(rest[1:] @ rest[:-1]) / squares if squares else 0.0
    # Of few values it comes out too low (Marriott and Pope, Biometrika 41, 1954).
    correlation = min(max(correlation + (1 + 4 * correlation) / number, 0.0), _MOST_ALIKE)
    independent = (
        number * (1 - correlation) / (1 + correlation)
    )  # how many independent values tell as much
    width = sqrt(squares / (number - 2) / independent) * student_quantile(
        1 - wrong / 2, max(int(independent) - 2, 1)
    )
    if number >= _BLOCKS * _IN_BLOCK:
        means = np.array([block.mean() for block in np.array_split(rest, _BLOCKS)])
        error = sqrt(float(means @ means) / (_BLOCKS - 2) / _BLOCKS)
        width = max(width, error * student_quantile(1 - wrong / 2, _BLOCKS - 2))
    return ConfidenceInterval(mean, mean - width, mean + width)


def usual_steps(steps: pd.DataFrame) -> npt.NDArray[np.bool_]:
    """Which of a rank's rows of `steps` are decode steps that take about as long as others alike.

    The first use of a kernel compiles it, which takes many times as long.
    """
    decode = (steps["phase"].astype(str) == "decode").to_numpy()
    took = steps["end_ns"] - steps["start_ns"]
    median = took.where(decode).groupby(steps["decode_tokens"]).transform("median")
    return decode & (took <= _UNUSUAL * median).to_numpy(bool)


def lateness_of(
    calls: pd.DataFrame, turns: Sequence[int], usual_ns: float, named: Mapping[str, Any]
) -> Iterator[Lateness]:
    """The ranks of one group that come later than the rest, at most one entry a place.

    Args:
        calls: matched calls on one clock: turn, call, rank, start_ns and end_ns.
        turns: the steps that count, by `turn`; what another phase did is left out.
        usual_ns: how long a usual decode step takes. A rank that is later than that did something
            else before.
        named: stage and replica of the group, and the batch size of these steps.
    """
    calls = calls[calls["turn"].isin(turns)]
    begun = calls.groupby("call")["start_ns"].transform("min")
    first = begun == begun.groupby(calls["turn"]).transform("min")
    places = (calls[first], calls[~first])
    by_place = [
        _of_calls(rows, place, usual_ns, named) for place, rows in zip(PLACES, places, strict=True)
    ]
    latenesses = [late for late in by_place if late]
    if len(latenesses) > 1 and len({late.ranks for late in latenesses}) == 1:
        # The same ranks throughout: one thing to look at.
        latenesses = [_of_calls(calls, "inside", usual_ns, named) or latenesses[0]]
    yield from latenesses


def _of_calls(
    calls: pd.DataFrame, place: str, usual_ns: float, named: Mapping[str, Any]
) -> Lateness | None:
    base = calls.groupby("call")["start_ns"].transform("min")
    calls = calls.assign(late=calls["start_ns"] - base, took=calls["end_ns"] - calls["start_ns"])
    sums = calls.groupby(["turn", "rank"])[["late", "took"]].sum().unstack().dropna()
    number_of_ranks = len(sums.columns) // 2
    if len(sums) < _FEWEST_STEPS or number_of_ranks < 2:
        return None
    values = sums.to_numpy(np.float64)
    late, took = values[:, :number_of_ranks], values[:, number_of_ranks:]
    usual = late.max(axis=1) <= usual_ns
    late, took = late[usual], took[usual]
    if len(late) < _FEWEST_STEPS or not (latest := _latest(late, took)):
        return None
    order, number, interval = latest
    every = sums.columns.get_level_values("rank")[:number_of_ranks].astype(np.int64).tolist()
    ranks = [every[place] for place in order]
    return Lateness(
        place=place,
        ranks=tuple(sorted(ranks[:number])),
        others=tuple(sorted(ranks[number:])),
        steps=len(late),
        us=interval.mean / 1e3,
        low_us=interval.low / 1e3,
        high_us=interval.high / 1e3,
        **named,
    )


def _latest(late: Floats, took: Floats) -> tuple[list[int], int, ConfidenceInterval] | None:
    """Columns from the latest on, how many of them are late, and by how much at least.

    Of the late ones the least late is compared with the latest of the others: as much a repair of
    all of them could bring at most. Where two clocks disagree, a rank seems late whose calls take
    as long as others': who comes later to a collective also leaves it after a shorter time.
    """
    order = np.argsort(-late.mean(axis=0), kind="stable").tolist()
    best: tuple[list[int], int, ConfidenceInterval] | None = None
    for number in range(1, len(order) // 2 + 1):
        last_late, next_rank = order[number - 1], order[number]
        difference = min(
            (
                interval_of_mean(late[:, last_late] - late[:, next_rank], _WRONG / len(order)),
                interval_of_mean(took[:, next_rank] - took[:, last_late], _WRONG / len(order)),
            ),
            key=lambda interval: interval.low,
        )
        if difference.low > 0 and (best is None or difference.mean > best[2].mean):
            best = order, number, difference
    return best

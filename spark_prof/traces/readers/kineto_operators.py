"""When each operator of a CPU ran itself, rather than one that it called."""

from __future__ import annotations

from array import array
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Int64s = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Stretches:
    """Stretches of operators, none of which overlap within a thread.

    Attributes:
        operator: index of the operator.
        part: 0 for its first stretch, then 1, 2...
        start_ns: begins.
        end_ns: ends.
    """

    operator: Int64s
    part: Int64s
    start_ns: Int64s
    end_ns: Int64s


def stretches(thread: Int64s, start: Int64s, end: Int64s) -> Stretches:
    """Splits nested operators into stretches; one that is shorter than a tick still has one.

    Args:
        thread: the thread of each operator.
        start: starts in ns.
        end: ends in ns; one that ends after its caller goes on alone.
    """
    order = np.lexsort((-end, start, thread))
    borders = np.flatnonzero(np.diff(thread[order])) + 1
    rows = tuple(array("q") for _ in range(4))
    for mine in np.split(order, borders):
        _of_one_thread(mine.tolist(), start[mine].tolist(), end[mine].tolist(), *rows)
    return Stretches(*(np.frombuffer(column, np.int64) for column in rows))


def _of_one_thread(
    operators: list[int],
    starts: list[int],
    ends: list[int],
    owner: array[int],
    part: array[int],
    begin: array[int],
    finish: array[int],
) -> None:
    stack: list[list[int]] = []  # operator, end, stretches so far
    now = starts[0] if starts else 0

    def add(top: list[int], limit: int) -> None:
        nonlocal now
        owner.append(top[0])
        part.append(top[2])
        begin.append(now)
        finish.append(limit)
        top[2] += 1
        now = limit

    def run_until(limit: int) -> None:
        while stack and stack[-1][1] <= limit:
            top = stack.pop()
            if top[1] > now:
                add(top, top[1])
            elif not top[2]:
                add(top, now)
        if stack and limit > now:
            add(stack[-1], limit)

    for operator, start, end in zip(operators, starts, ends, strict=True):
        run_until(start)
        now = max(now, start)
        stack.append([operator, end, 0])
    run_until(max(ends, default=0))

"""Times contestants at the same work: in turns, with cold caches, and only where they are right.

Before each call a kernel writes its activations, as in a model, and a call's time is what it adds
to that kernel. Calls back to back would flatter a kernel that starts before the one in front of it
has ended: it would overlap with itself, which it never does in a model.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TypeVar

import torch

from spark_prof.errors import one_line
from spark_prof.kernels.bench.repeated import Call, Output, Repeated, repeated
from spark_prof.kernels.bench.results import Result, spread

__all__ = ["Contestant", "Plan", "clones", "plan", "race", "reason", "relative_l2"]

T = TypeVar("T")

_CACHES_BETWEEN = 3
"""Caches' worth of other bytes read between two uses of the same bytes."""

_FEWEST_COPIES = 4
_FEWEST_REPEATS, _MOST_REPEATS = 20, 60
_LONG_ENOUGH_US = 300.0
"""How long one repeat should last at least: events tell time to half a microsecond."""

_QUICKEST_BYTES_PER_US = 2e6
_QUICKEST_US = 4.0
_MOST_CALLS = 512


@dataclass(frozen=True)
class Contestant:
    """Somebody who can do the work.

    Attributes:
        name: who.
        call: does the call of a number, from 0 to the plan's calls - 1.
    """

    name: str
    call: Call


@dataclass(frozen=True)
class Plan:
    """How often a piece of work is done in one repeat, and on how many copies of its weights."""

    calls: int
    copies: int


def plan(bytes_used: int, cache: int, bytes_stored: int | None = None) -> Plan:
    """So many calls and copies that every call finds its weights cold.

    Args:
        bytes_used: what one call reads.
        cache: bytes of the last cache.
        bytes_stored: of one copy of the weights, where a call reads a part of them that changes.
    """
    between = _CACHES_BETWEEN * cache
    copies = max(_FEWEST_COPIES, math.ceil(between / max(bytes_stored or bytes_used, 1)))
    copies = min(copies, _MOST_CALLS)
    quickest = bytes_used / _QUICKEST_BYTES_PER_US + _QUICKEST_US
    calls = max(math.ceil(between / max(bytes_used, 1)), math.ceil(_LONG_ENOUGH_US / quickest))
    calls = min(math.ceil(calls / copies) * copies, _MOST_CALLS // copies * copies)
    return Plan(max(calls, copies), copies)


def race(
    contestants: Sequence[Contestant | Result],
    calls: int,
    before: Callable[[int], None],
    error: Callable[[int, Output], float],
    tolerance: float,
    device: torch.device,
    seconds: float = 0.5,
) -> tuple[Result, ...]:
    """Times every contestant that computes what is right; they take turns, repeat by repeat.

    Args:
        contestants: who takes part, or why somebody cannot.
        calls: in one repeat.
        before: writes the activations of the call of a number.
        error: of the output of the call of a number.
        tolerance: largest error that is right.
        device: on which it all happens.
        seconds: after at least 20 repeats each no more are begun once this has passed.

    Returns:
        One result a contestant, in their order.
    """

    def written(number: int) -> Output:
        before(number)
        return ()

    alone = repeated(written, calls, device)
    results: dict[int, Result] = {}
    ready: dict[int, tuple[Contestant, Repeated]] = {}
    for place, contestant in enumerate(contestants):
        if isinstance(contestant, Result):
            results[place] = contestant
            continue
        try:
            runs = repeated(_behind(before, contestant.call), calls, device)
            off = _error_after_poison(runs, error)
        except Exception as failure:
            results[place] = Result(contestant.name, None, None, reason(failure))
            continue
        if off <= tolerance:
            ready[place] = contestant, runs
            results[place] = Result(contestant.name, None, off)
        else:
            what = f"wrong result: error {off:.3g}, allowed {tolerance:.3g}"
            results[place] = Result(contestant.name, None, off, what)
    times = _in_turns([alone, *(runs for _, runs in ready.values())], seconds)
    writing = median(times[0])
    for (place, (contestant, runs)), repeats in zip(ready.items(), times[1:], strict=True):
        us = spread([1e6 * (repeat - writing) / calls for repeat in repeats])
        # Once more: a kernel that only sometimes is right is not timed as if it were.
        off = max(results[place].error or 0.0, _error_after_poison(runs, error))
        if off <= tolerance:
            results[place] = Result(contestant.name, us, off)
        else:
            what = f"wrong result after {us.repeats} repeats: error {off:.3g}"
            results[place] = Result(contestant.name, None, off, what)
    return tuple(results[place] for place in range(len(contestants)))


def relative_l2(output: torch.Tensor, expected: torch.Tensor) -> float:
    """The L2 norm of the difference over that of what was expected; NaN if anything is NaN."""
    off = (output.to(torch.float64) - expected.to(torch.float64)).norm()
    return float(off / expected.to(torch.float64).norm())


def clones(value: T, count: int) -> list[T]:
    """That many copies with memory of their own, the value itself among them."""
    return [value, *(copy.deepcopy(value) for _ in range(count - 1))]


def reason(failure: BaseException) -> str:
    """The first line of what went wrong, with its type."""
    lines = str(failure).strip().splitlines() or [""]
    return one_line(f"{type(failure).__name__}: {lines[0]}")[:300]


def _behind(before: Callable[[int], None], call: Call) -> Call:
    def both(number: int) -> torch.Tensor | Output:
        before(number)
        return call(number)

    return both


def _error_after_poison(runs: Repeated, error: Callable[[int, Output], float]) -> float:
    runs.poison()
    runs.seconds()
    errors = [error(number, output) for number, output in enumerate(runs.outputs)]
    # NaN compares with nothing.
    return math.inf if any(math.isnan(e) for e in errors) else max(errors)


def _in_turns(all_runs: Sequence[Repeated], seconds: float) -> list[list[float]]:
    times: list[list[float]] = [[] for _ in all_runs]
    begun = time.perf_counter()
    for repeat in range(_MOST_REPEATS):
        if repeat >= _FEWEST_REPEATS and time.perf_counter() - begun > seconds:
            break
        for runs, its in zip(all_runs, times, strict=True):
            its.append(runs.seconds())
    return times

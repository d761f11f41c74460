"""The last stage of a search: what it found best is measured again, in fresh engines."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress

from spark_prof.tune.bench import Bench
from spark_prof.tune.budget import ROUNDS, SHORTEST_S, SWAPS_COST
from spark_prof.tune.known_gains import of_starts
from spark_prof.tune.tune_trial import (
    BASE,
    Combination,
    Pair,
    Timed,
    TimeUpError,
    name_of,
    over_batches,
    swaps_only,
)

_CONFIRM_S = 20.0
_FEWEST_TURNS, _MOST_TURNS = 4, 6  # of starts that confirm, every other one of the base


def confirm(bench: Bench) -> None:
    """The best of all, else the best of the swaps, where fresh engines find it faster too.

    A search looks at many figures and keeps the best, which favours luck.
    """
    answer, evidence = bench.answer, bench.evidence
    for combination in filter(None, dict.fromkeys((answer.best, answer.swapped))):
        if bench.budget.left < bench.budget.start_s:
            answer.line = "no time was left to confirm it; --resume does"
            answer.unconfirmed = answer.unconfirmed or combination
            continue
        bench.say(f"confirming {name_of(combination)} in fresh engines")
        paired = swaps_only(combination) and all(w in bench.swapped for w in combination)
        times = _paired(bench, combination) if paired else _started(bench, combination)
        gain = over_batches(times)
        if (effect := evidence.claims(gain)) == "faster":
            answer.confirmed, answer.times = combination, times
            return
        name = name_of(combination)
        answer.line = f"{name} was faster in the search, and not in fresh engines"
        bad = evidence.last(combination, BASE if paired else None, "confirmation")
        if bad and bad.why:
            answer.line += f": {bad.why}"
            continue
        ends = f"({gain.value:.3f} x, 95 % {gain.low:.3f} to {gain.high:.3f})" if gain else ""
        if effect != "not told":
            answer.line += f" {ends}"
            continue
        answer.unconfirmed = answer.unconfirmed or combination
        if gain is None or gain.high == math.inf:
            answer.line = "no time was left for fresh engines enough; --resume starts them"
        else:
            answer.line = f"fresh engines do not tell whether it is {ends}; give more --minutes"


def _decided(bench: Bench, times: Sequence[Timed]) -> bool:
    """Whether more time could tell no more: over all batch sizes, and of an answer at each."""
    claims = bench.evidence.claims
    effect = claims(over_batches(times))
    some_open = effect == "faster" and any(claims(timed.gain) == "not told" for timed in times)
    return effect != "not told" and not some_open


def _paired(bench: Bench, combination: Combination) -> tuple[Timed, ...]:
    """In one fresh engine: again, and longer, while something is open and time is left.

    Then the base over itself, as far as there is time: it says what counts on this machine.
    """
    budget, evidence, floor = bench.budget, bench.evidence, bench.evidence.floor
    seconds = (budget.left - SWAPS_COST * budget.start_s) / (3 * bench.measure.batches)
    seconds = min(max(seconds, SHORTEST_S), _CONFIRM_S)
    times: tuple[Timed, ...] = ()
    took = 0.0
    for number, more in enumerate(ROUNDS):
        if number and budget.left < 2 * took:
            break
        # Once there is an answer, the time may be up: what was measured of it stays.
        try:
            bench.together(number, [Pair(combination)], (), seconds * more, "confirmation")
        except TimeUpError:
            if not times:
                raise
            break
        trial = evidence.last(combination, BASE, "confirmation")
        if not trial or trial.outcome != "measured":
            return ()
        times = trial.times
        with suppress(TimeUpError):
            bench.together(number, [Pair(BASE)], (), seconds * more, "confirmation")
        itself = evidence.last(BASE, BASE, "confirmation")
        unlike = over_batches(itself.times) if itself else None
        if unlike and not unlike.low <= 1 <= unlike.high:
            evidence.floor = max(floor, unlike.high - 1, 1 - unlike.low)
        took = trial.seconds + (itself.seconds if itself else 0.0)
        if _decided(bench, times):
            break
    return times


def _started(bench: Bench, combination: Combination) -> tuple[Timed, ...]:
    """Fresh starts in turns; earlier ones of the base, which nobody chose, count too.

    Two of each, and more while something is open and time is left.
    """
    budget, evidence = bench.budget, bench.evidence
    base_s = budget.start_s / SWAPS_COST  # the longest start is one of swaps
    turns = [(number // 2, (combination, BASE)[number % 2]) for number in range(_MOST_TURNS)]
    sure = 1
    if budget.left >= budget.start_s + base_s:
        turns[:2], sure = [(0, BASE), (0, combination)], 2
    for place, (number, started) in enumerate(turns):
        whole = place >= _FEWEST_TURNS and place % 2 == 0
        if whole and _decided(bench, _of_fresh_starts(bench, combination)):
            break
        if place >= sure and budget.left < (budget.start_s if started else base_s):
            continue
        try:
            bench.start("confirmation", number, [started])
        except TimeUpError:
            if place < sure:
                raise
        if started in evidence.bad and started:
            return ()
    return _of_fresh_starts(bench, combination)


def _of_fresh_starts(bench: Bench, combination: Combination) -> tuple[Timed, ...]:
    """The gain of starts that confirm; of others counts only how far apart they were."""
    starts = bench.evidence.starts
    fresh = [t for t in starts.get(combination, ()) if t.stage == "confirmation"]
    chosen_by = [t for t in starts.get(combination, ()) if t.stage == "search"]
    return of_starts(starts.get(BASE, ()), fresh, chosen_by)

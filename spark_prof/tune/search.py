"""Finds the fastest combination of candidates by measuring, in a time that is kept: one policy.

`STAGES` is the policy, in its order; each works on a `Bench` within a `Budget`. Candidates lose by
interval: where its upper end is at 1, or below the lower end of a rival, one that cannot be on
together with it. What two bring together is never assumed, but measured.

Nothing here starts an engine: `Measure` does, or a simulation of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from spark_prof.tune.bench import ROUNDS, SHORTEST_S, SWAPS_COST, Bench, engine_groups
from spark_prof.tune.known_gains import Verdict, of_starts
from spark_prof.tune.stages import extend, try_engines, try_lead, try_swaps
from spark_prof.tune.tune_trial import (
    BASE,
    NO_SLOTS,
    Candidate,
    Combination,
    Measure,
    Pair,
    Slots,
    Timed,
    TimeUpError,
    TuneTrial,
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
    for number, factor in enumerate(ROUNDS):
        if number and budget.left < 2 * took:
            break
        # Once there is an answer, the time may be up: what was measured of it stays.
        try:
            bench.together(number, [Pair(combination)], (), seconds * factor, "confirmation")
        except TimeUpError:
            if not times:
                raise
            break
        trial = evidence.last(combination, BASE, "confirmation")
        if not trial or trial.outcome != "measured":
            return ()
        times = trial.times
        with suppress(TimeUpError):
            bench.together(number, [Pair(BASE)], (), seconds * factor, "confirmation")
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


def look_once(bench: Bench) -> None:
    """Where nothing could be tried with time to confirm it: a first look with what is left.

    `--resume` goes on with it.
    """
    if bench.evidence.gains or BASE in bench.evidence.bad:
        return
    bench.budget.reserving = False
    bench.evidence.why.clear()
    for stage in (try_swaps, try_engines, extend):
        stage(bench)


STAGES: tuple[Callable[[Bench], None], ...] = (
    try_lead,  # what promises most, where it needs an engine of its own
    try_swaps,  # swaps, all in one engine
    try_engines,  # options and variables, an engine each, with and without the swaps that won
    extend,  # the best of all, and what makes it better still
    look_once,  # with too little time for any of that, what fits into the time
    confirm,  # the best again, in fresh engines: that figure is the answer
)


@dataclass(frozen=True)
class SearchResult:
    """What a search came to."""

    answer: Combination  # confirmed in fresh engines; none where nothing helps
    times: tuple[Timed, ...]  # of the answer, from its confirmation
    trials: tuple[TuneTrial, ...]
    verdicts: dict[str, tuple[Verdict, str]]  # of each candidate's words, with one line or none
    line: str = ""  # why there is no answer though something was faster in the search
    unconfirmed: Combination = BASE  # what that was, where the time was up
    needed_minutes: int | None = None  # for all of it, where time was lacking
    engine_s: float | None = None  # what an engine took here, where time was lacking


class Search:
    """One search over the candidates of a table.

    Search(table.candidates, engines, print).run().answer
    """

    def __init__(
        self,
        candidates: Sequence[Candidate],
        measure: Measure,
        say: Callable[[str], None],
        first: Sequence[TuneTrial] = (),  # what is known before, such as the base's first start
        alone: frozenset[str] = frozenset(),  # swaps for whose copies one engine has no room
        keep: Callable[[TuneTrial], None] = lambda _: None,  # is given each trial as it ends
        beside_layer: Slots = NO_SLOTS,  # slots that slot `layer` leaves something to swap
    ) -> None:
        self._bench = Bench.of(candidates, measure, say, alone, keep, beside_layer)
        for trial in first:
            self._bench.keep(trial)

    def run(self) -> SearchResult:
        """Goes through the stages, as far as the time goes."""
        bench = self._bench
        try:
            for stage in STAGES:
                stage(bench)
        except TimeUpError:
            gains, answer = bench.evidence.gains, bench.answer
            worth = [c for c in gains if c and bench.evidence.worth(c)]
            answer.unconfirmed = max(worth, key=lambda c: gains[c].value, default=BASE)
            answer.line = "the time was up before anything was told; --resume goes on"
            if answer.unconfirmed:
                answer.line = "the time was up before it was confirmed; --resume goes on"
        return self.result()

    def result(self) -> SearchResult:
        """What is known, of a search that ended early too."""
        answer, evidence = self._bench.answer, self._bench.evidence
        line = answer.line
        if (base := evidence.bad.get(BASE)) and not answer.confirmed:
            line = f"the engine as it is could not be measured: {base.why}"
        verdicts = {
            words: evidence.verdict(words, answer.confirmed, line) for words in self._bench.order
        }
        return SearchResult(
            answer.confirmed,
            answer.times,
            tuple(evidence.trials),
            verdicts,
            "" if answer.confirmed else line,
            BASE if answer.confirmed else answer.unconfirmed,
            *self._needed(verdicts),
        )

    def _needed(self, verdicts: dict[str, tuple[Verdict, str]]) -> tuple[int | None, float | None]:
        """Minutes that all of it takes, and seconds of an engine; None where time was enough."""
        bench, answer = self._bench, self._bench.answer
        untried = [words for words, (verdict, _) in verdicts.items() if verdict == "not tried"]
        lacking = untried or (answer.unconfirmed and not answer.confirmed)
        if not lacking or _is_broken(bench):
            return None, None
        minutes = bench.budget.minutes_for(len(bench.swapped), len(engine_groups(bench.separate)))
        return minutes, bench.budget.start_s


def _is_broken(bench: Bench) -> bool:
    """Whether the engine as it is does not start, for want of anything but time."""
    return BASE in bench.evidence.bad and bench.budget.left > bench.budget.start_s

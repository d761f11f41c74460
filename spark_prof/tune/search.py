"""Finds the fastest combination of candidates by measuring, in a time that is kept.

What promises most comes first, where it needs an engine of its own. Else swaps do, all in one
engine, each in pairs against the base. Candidates lose by interval: where its upper end is at 1,
or below the lower end of a rival, one that cannot be on together with it. Those that are still open
get twice the time, and twice again. Then the faster ones are put together, the best first, and
another stays only where the combination is measured faster than it was without: what two bring
together is never assumed. Options and variables need an engine each, which is started with and
without the swaps that won. The search looks at many figures and keeps the best, which favours luck:
so the answer is a figure of fresh engines, measured apart from the search, and where that shows no
gain nothing helps.

Nothing here starts an engine: `Measure` does, or a simulation of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import astuple, dataclass
from itertools import combinations

from spark_prof.ab.statistics import Interval
from spark_prof.tune.known_gains import WORTH, Evidence, Verdict, of_starts, swaps_of
from spark_prof.tune.tune_trial import (
    BASE,
    Candidate,
    Combination,
    EngineEndedError,
    Measure,
    Pair,
    Stage,
    Timed,
    TimeUpError,
    Trial,
    fits,
    name_of,
    over_batches,
    rivals,
    side_of,
    swaps_only,
)

_ROUNDS = (1.0, 2.0, 4.0)
"""Time of each round on a candidate that is still open, in those of the first."""
_MOST_SIDES = 10
"""Of one engine: each takes two or three seconds for CUDA graphs of its own."""
_SWAPS_COST = 1.6
"""Of what an engine takes: all kernels are built and tried, and every side is captured."""
_MOST_STARTS = 3
_SHORTEST_S, _LONGEST_S = 0.5, 10.0
_CONFIRM_S = 20.0
_FEWEST_TURNS, _MOST_TURNS = 4, 6  # of starts that confirm, every other one of the base
_SLACK = 1.15  # of starts, which take as long as others did


@dataclass(frozen=True)
class Found:
    """What a search came to."""

    answer: Combination  # confirmed in fresh engines; none where nothing helps
    times: tuple[Timed, ...]  # of the answer, from its confirmation
    trials: tuple[Trial, ...]
    verdicts: dict[str, tuple[Verdict, str]]  # of each candidate's words, with one line or none
    line: str = ""  # why there is no answer though something was faster in the search
    unconfirmed: Combination = BASE  # what that was, where the time was up


class Search:
    """One search over the candidates of a table."""

    def __init__(
        self,
        candidates: Sequence[Candidate],
        measure: Measure,
        say: Callable[[str], None],
        first: Sequence[Trial] = (),  # what is known before, such as the base's first start
        alone: frozenset[str] = frozenset(),  # swaps for whose copies one engine has no room
        keep: Callable[[Trial], None] = lambda _: None,  # is given each trial as it ends
    ) -> None:
        self._order = {candidate.words: at for at, candidate in enumerate(candidates)}
        together = [w for w in self._order if swaps_only((w,)) and w not in alone]
        self._swapped = together
        self._others = [words for words in self._order if words not in together]
        self._measure, self._say, self._journal = measure, say, keep
        self._known = Evidence(together, measure.floor)
        self._line = ""
        self._unconfirmed = BASE
        for trial in first:
            self._keep(trial)

    def run(self) -> Found:
        """Searches and confirms, as far as the time goes."""
        try:
            led = self._lead()
            if led and self._measure.left < _SWAPS_COST * self._cost + self._reserve(starts=2):
                why = f"no time was left beside {led}, which promises more; give more --minutes"
                self._known.why |= dict.fromkeys(self._swapped, why)
                swapped = BASE
            else:
                swapped = self._swaps()
            best = self._engines(swapped)
            return self.found(*self._confirmed(dict.fromkeys((best, swapped))))
        except TimeUpError:
            self._line = "the time was up before it was confirmed; --resume goes on"
            known = self._known.gains
            worth = [c for c in known if c and self._known.worth(c)]
            self._unconfirmed = max(worth, key=lambda c: known[c].value, default=BASE)
        return self.found()

    def found(self, answer: Combination = BASE, times: tuple[Timed, ...] = ()) -> Found:
        """What is known, of a search that ended early too."""
        verdicts = {words: self._known.verdict(words, answer, self._line) for words in self._order}
        line = "" if answer else self._line
        unconfirmed = BASE if answer else self._unconfirmed
        return Found(answer, times, tuple(self._known.trials), verdicts, line, unconfirmed)

    def _lead(self) -> str:
        """Starts what promises most where it needs an engine of its own; its words if it is worth.

        That comes before all swaps, and with time for one start to confirm it left, not for two:
        what a search has no time for may be the answer, and the first of the table mostly is.
        """
        first = next(iter(self._order), "")
        if first not in self._others or not swaps_of(first):
            return ""
        group = next(group for group in _alike(self._others) if first in group)
        unknown = self._lacks(BASE, 0)
        if self._measure.left < (1 + unknown) * self._cost + self._reserve(starts=1):
            return ""
        if unknown:
            self._tell("the engine as it is", len(self._order))
            self._start("search", 0, [BASE], starts=1)
        self._tell(f"{_names(group)} in an engine of its own", len(self._order))
        self._start("search", 0, [(words,) for words in group], starts=1)
        worth = [words for words in group if self._known.worth((words,))]
        return max(worth, key=lambda words: self._known.gains[words,].value, default="")

    # Swaps, in one engine.

    def _swaps(self) -> Combination:
        singles = [(words,) for words in self._swapped]
        if self._measure.left < _SWAPS_COST * self._cost + self._reserve():
            self._known.why |= dict.fromkeys(self._swapped, "no time was left; give more --minutes")
            singles = []
        if not singles:
            return BASE
        apart = [words for words in self._swapped if words not in self._known.bundles]
        also = family(BASE, apart, _MOST_SIDES - len(singles))
        reserve = self._reserve(2 if self._others else 1) + self._cost * bool(self._others)
        rounds = sum(_ROUNDS) / 2 + 1  # few are open in the last one; then they are put together
        spare = self._measure.left - _SWAPS_COST * self._cost - reserve
        each = spare / (rounds * len(singles) * self._measure.batches)
        each = min(max(each, _SHORTEST_S), _LONGEST_S)
        alive = singles
        for number, more in enumerate(_ROUNDS):
            if not alive or (number and not self._time_for(len(alive) * each * more)):
                break
            self._tell(f"{len(alive)} swaps in one engine, {each * more:.1f} s each", len(alive))
            self._together(number, [Pair(c) for c in alive], also, each * more)
            alive = [c for c in alive if self._known.is_open(c)]
        won = [c for c in singles if self._known.lasting(c) and self._known.effect(c) == "faster"]
        won.sort(key=lambda c: -self._known.gains[c].value)
        bundles = [c for c in won if c[0] in self._known.bundles]
        best = self._joined([c for c in won if c not in bundles], 2 * each)
        return self._or_bundle(best, bundles, 2 * each)

    def _or_bundle(
        self, best: Combination, bundles: Sequence[Combination], each: float
    ) -> Combination:
        """The fastest bundle, where it is faster than what was put together."""
        for bundle in bundles[:1]:
            (words,) = bundle
            if {*swaps_of(words)} == {s for w in best for s in swaps_of(w)}:
                self._known.why[words] = f"the same as {name_of(best)}"
            elif not best or self._known.gains[bundle].value > self._known.gains[best].value:
                if best and self._time_for(each):
                    self._together(0, [Pair(bundle, best)], [], each)
                    trial = self._known.last(bundle, best)
                    gain = over_batches(trial.times) if trial else None
                    if not gain or self._known.claims(gain) != "faster":
                        self._known.why[words] = f"no faster than {name_of(best)}"
                        continue
                best = bundle
        return best

    def _joined(self, won: Sequence[Combination], each: float) -> Combination:
        """Adds one after another to the best, and keeps what makes it faster.

        Of those that are left the fastest is next; but first those that need no other engine.
        """
        best, rest = (won[0], [words for (words,) in won[1:]]) if won else (BASE, [])
        while rest:
            held = (w for w in rest if self._measure.holds(self._ordered((*best, w))))
            words = next(held, rest[0])
            rest.remove(words)
            wanted = self._ordered((*best, words))
            if not fits(best, words):
                self._known.why[words] = f"{name_of(best)} is faster in its place"
                continue
            if not self._time_for(each + (0 if self._measure.holds(wanted) else self._cost)):
                self._known.why[words] = f"no time was left to try it with {name_of(best)}"
                continue
            also = map(self._ordered, family(best, [words, *rest], _MOST_SIDES))
            self._tell(f"{name_of(wanted)} over {name_of(best)}", len(rest) + 1)
            self._together(0, [Pair(wanted, best)], list(also), each)
            trial = self._known.last(wanted, best)
            gain = over_batches(trial.times) if trial and trial.outcome == "measured" else None
            if gain and self._known.claims(gain) == "faster":
                ends = zip(astuple(self._known.gains[best]), astuple(gain), strict=True)
                self._known.gains[wanted] = Interval(*(one * other for one, other in ends))
                best = wanted
            else:
                self._known.why[words] = f"brings nothing beside {name_of(best)}"
        return best

    def _together(
        self,
        number: int,
        pairs: Sequence[Pair],
        also: Sequence[Combination],
        each: float,
        stage: Stage = "search",
    ) -> None:
        """Measures pairs; where the engine ends without a word, its halves apart."""
        waiting = list(pairs)
        while waiting:
            kept_s = self._reserve() if stage == "search" else 0.0
            if (within := self._measure.left - kept_s) <= 0:
                return
            some = [c for c in also if not self._known.holds_bad(c)]
            done = 0
            try:
                for trial in self._measure.together(stage, number, waiting, some, each, within):
                    self._keep(trial)
                    done += 1
                return
            except EngineEndedError as error:
                waiting = waiting[done:]
                if self._measure.left <= kept_s:
                    return  # its time is up, by nobody's fault
                blamed = list(error.blamed)
                if not blamed and (len(waiting) == 1 or not waiting[0].combination):
                    blamed = [waiting[-1].combination]
                for combination in blamed:
                    self._fail(stage, number, combination, str(error))
                if not blamed:
                    half = len(waiting) // 2
                    self._together(number, waiting[:half], (), each, stage)
                    self._together(number, waiting[half:], (), each, stage)
                    return
                waiting = [pair for pair in waiting if not self._known.holds_bad(pair.combination)]

    # Options and variables, an engine each.

    def _engines(self, swapped: Combination) -> Combination:
        alive = list(self._others)
        for number in range(_MOST_STARTS):
            tried: list[str] = []
            for group in _alike(alive):
                both: dict[Combination, None] = {}
                for words in group:
                    beside = [other for other in swapped if not rivals(other, words)]
                    both |= dict.fromkeys([(words,), self._ordered((*beside, words))])
                wanted = [c for c in both if self._lacks(c, number)]
                if not wanted:
                    tried += group
                    continue
                missing = 1 + self._lacks(BASE, number)
                if self._measure.left < missing * self._cost + self._reserve(starts=2):
                    if not number:
                        why = "no time for an engine of its own; give more --minutes"
                        self._known.why |= dict.fromkeys(group, why)
                    continue
                if missing > 1:
                    self._tell("the engine as it is, once more", len(alive))
                    self._start("search", number, [BASE])
                    if self._lacks(BASE, number):
                        return swapped  # the base itself does not start any more
                self._tell(f"{_names(group)} in an engine of its own", len(alive) - len(tried))
                self._start("search", number, wanted)
                tried += group
            alive = self._promising(tried)
        return self._extended(swapped)

    def _lacks(self, combination: Combination, number: int) -> bool:
        """Whether it has not been started that often, and could be."""
        started = len(self._known.starts.get(combination, ()))
        return started <= number and (not combination or not self._known.holds_bad(combination))

    def _promising(self, tried: Sequence[str]) -> list[str]:
        """The better half of those that are not told yet."""
        found = [w for w in tried if self._known.lasting((w,)) and self._known.is_open((w,))]
        found = [w for w in found if self._known.gains[w,].value > 1]
        found.sort(key=lambda words: -self._known.gains[words,].value)
        return found[: -(-len(tried) // 2)]

    def _extended(self, swapped: Combination) -> Combination:
        """The best that was measured, and what makes it better still."""
        known = {c: g.value for c, g in self._known.gains.items() if c and self._known.worth(c)}
        best = max([*known, swapped], key=lambda c: known.get(c, 1.0))
        if swapped and known.get(best, 1.0) < WORTH * self._known.gains[swapped].value:
            best = swapped
        rest = [
            w for w in self._order if w not in best and self._known.worth((w,)) and fits(best, w)
        ]
        for words in sorted(rest, key=lambda w: -self._known.gains[w,].value):
            wanted = self._ordered((*best, words))
            if not fits(best, words) or wanted in self._known.gains or swaps_only(wanted):
                continue
            if self._measure.left < self._cost + self._reserve(starts=2):
                self._known.why[words] = f"no time was left to try it with {name_of(best)}"
                continue
            self._tell(f"{name_of(wanted)} in an engine of its own", 1)
            self._start("search", 0, [wanted])
            gain, before = self._known.gains.get(wanted), self._known.gains.get(best)
            if gain and before and gain.value > WORTH * before.value:
                best = wanted
            else:
                self._known.why[words] = f"brings nothing beside {name_of(best)}"
        return best

    def _start(
        self, stage: Stage, number: int, alike: Sequence[Combination], starts: int = 2
    ) -> None:
        """Starts one engine, and keeps the time for those that confirm, unless it is of them."""
        kept_s = self._reserve(starts) if stage == "search" else 0.0
        try:
            for trial in self._measure.start(stage, number, alike, self._measure.left - kept_s):
                self._keep(trial)
        except EngineEndedError as error:
            if self._measure.left <= kept_s and alike[0]:
                why = "no time was left while its engine started"
                self._known.why |= dict.fromkeys((c[-1] for c in alike if c), why)
                return
            singles: list[Combination] = [c for c in alike if len(c) == 1]
            if len(singles) > 1 and not error.blamed:
                for combination in singles:
                    self._start(stage, number, [combination], starts)
                return
            for combination in error.blamed if len(singles) > 1 else [alike[0]]:
                self._fail(stage, number, combination, str(error), paired=False)
            if rest := [c for c in singles if not self._known.holds_bad(c)]:
                self._start(stage, number, rest, starts)

    # The answer.

    def _confirmed(
        self, wanted: Sequence[Combination] | dict[Combination, None]
    ) -> tuple[Combination, tuple[Timed, ...]]:
        """The first that is faster in fresh engines, too."""
        for combination in filter(None, wanted):
            paired = swaps_only(combination) and all(w in self._swapped for w in combination)
            if self._measure.left < self._cost:
                self._line = "no time was left to confirm it; --resume does"
                self._unconfirmed = self._unconfirmed or combination
                continue
            self._say(f"confirming {name_of(combination)} in fresh engines")
            times = self._paired(combination) if paired else self._started(combination)
            gain = over_batches(times)
            if (told := self._known.claims(gain)) == "faster":
                return combination, times
            name = name_of(combination)
            self._line = f"{name} was faster in the search, and not in fresh engines"
            bad = self._known.last(combination, BASE if paired else None, "confirmation")
            if bad and bad.why:
                self._line += f": {bad.why}"
                continue
            ends = f"({gain.value:.3f} x, 95 % {gain.low:.3f} to {gain.high:.3f})" if gain else ""
            if told != "not told":
                self._line += f" {ends}"
                continue
            self._unconfirmed = self._unconfirmed or combination
            if gain is None or gain.high == math.inf:
                self._line = "no time was left for fresh engines enough; --resume starts them"
            else:
                self._line = f"fresh engines do not tell whether it is {ends}; give more --minutes"
        return BASE, ()

    def _paired(self, combination: Combination) -> tuple[Timed, ...]:
        """In one fresh engine: again, and longer, while nothing is told and time is left.

        Then the base over itself, as far as there is time: it says what counts on this machine.
        """
        batches, floor = self._measure.batches, self._known.floor
        each = (self._measure.left - _SWAPS_COST * self._cost) / (3 * batches)
        each = min(max(each, _SHORTEST_S), _CONFIRM_S)
        times: tuple[Timed, ...] = ()
        took = 0.0
        for number, more in enumerate(_ROUNDS):
            if number and self._measure.left < 2 * took:
                break
            self._together(number, [Pair(combination)], (), each * more, "confirmation")
            trial = self._known.last(combination, BASE, "confirmation")
            if not trial or trial.outcome != "measured":
                return ()
            times = trial.times
            with suppress(TimeUpError):
                self._together(number, [Pair(BASE)], (), each * more, "confirmation")
            itself = self._known.last(BASE, BASE, "confirmation")
            unlike = over_batches(itself.times) if itself else None
            if unlike and not unlike.low <= 1 <= unlike.high:
                self._known.floor = max(floor, unlike.high - 1, 1 - unlike.low)
            took = trial.seconds + (itself.seconds if itself else 0.0)
            if self._known.claims(over_batches(times)) != "not told":
                break
        return times

    def _started(self, combination: Combination) -> tuple[Timed, ...]:
        """Fresh starts in turns; earlier ones of the base, which nobody chose, count too.

        Two of each, and more while they tell nothing and time is left.
        """
        base_s = self._cost / _SWAPS_COST  # the longest start is one of swaps
        turns = [(number // 2, (combination, BASE)[number % 2]) for number in range(_MOST_TURNS)]
        sure = 1
        if self._measure.left >= self._cost + base_s:
            turns[:2], sure = [(0, BASE), (0, combination)], 2
        for place, (number, each) in enumerate(turns):
            if place >= _FEWEST_TURNS and place % 2 == 0:
                gain = over_batches(self._of_fresh_starts(combination))
                if self._known.claims(gain) != "not told":
                    break
            if place >= sure and self._measure.left < (self._cost if each else base_s):
                continue
            try:
                self._start("confirmation", number, [each])
            except TimeUpError:
                if place < sure:
                    raise
            if each in self._known.bad and each:
                return ()
        return self._of_fresh_starts(combination)

    def _of_fresh_starts(self, combination: Combination) -> tuple[Timed, ...]:
        starts = self._known.starts.get(combination, ())
        fresh = [t for t in starts if t.stage == "confirmation"]
        chosen_by = [t for t in starts if t.stage == "search"]
        return of_starts(self._known.starts.get(BASE, ()), fresh, chosen_by)

    def _keep(self, trial: Trial) -> None:
        self._journal(trial)
        self._known.floor = max(self._known.floor, self._measure.floor)
        self._known.add(trial)
        name = name_of(trial.combination)
        if trial.outcome != "measured":
            ended = "does not run here" if trial.outcome == "not live" else trial.outcome
            self._say(f"{name} {ended}: {trial.why}")
        elif trial.combination and (gain := over_batches(trial.times)):
            over = f" over {name_of(trial.than)}" if trial.than else ""
            self._say(f"{name}: {gain.value:.3f} x{over} (95 % {gain.low:.3f} to {gain.high:.3f})")

    def _fail(
        self, stage: Stage, number: int, combination: Combination, why: str, *, paired: bool = True
    ) -> None:
        than = BASE if paired else None
        self._keep(Trial(stage, number, combination, than, "failed", why))

    def _ordered(self, combination: Combination) -> Combination:
        return tuple(sorted(combination, key=self._order.__getitem__))

    # Time.

    @property
    def _cost(self) -> float:
        return self._measure.start_s

    def _reserve(self, starts: int = 1) -> float:
        """What confirming takes: one engine of both sides, or so many starts, and the steps."""
        known = (t.seconds for t in self._known.trials if t.times)
        steps = max(min(known, default=0.0), 4.0 * self._measure.batches)
        return self._cost * starts * _SLACK + steps

    def _time_for(self, seconds: float) -> bool:
        return self._measure.left > seconds * self._measure.batches + self._reserve()

    def _tell(self, what: str, waiting: int) -> None:
        best = max(self._known.gains.items(), key=lambda each: each[1].value, default=None)
        won = f"; best until now {name_of(best[0])}, {best[1].value:.2f} x" if best else ""
        left = self._measure.left / 60
        self._say(f"trying {what}{won}; {waiting} to go here, {left:.1f} min left")


def _names(group: Sequence[str]) -> str:
    return " and ".join(name_of((words,)) for words in group)


def _alike(every: Sequence[str]) -> list[list[str]]:
    """Candidates by what an engine has to be started with: those that differ in swaps share one."""
    groups: dict[object, list[str]] = {}
    for words in every:
        side = side_of((words,))
        groups.setdefault((side.options, side.environment), []).append(words)
    return list(groups.values())


def family(current: Combination, rest: Sequence[str], most: int) -> list[Combination]:
    """Combinations that may be asked for when the rest is added one after another.

    Each of the rest stays or not: first come those where all stay, then where one did not.
    """
    found: dict[Combination, None] = {}
    for left_out in range(len(rest)):
        for skipped in combinations(range(len(rest)), left_out):
            kept = current
            for place, words in enumerate(rest):
                if place in skipped or not fits(kept, words):
                    continue
                kept = (*kept, words)
                if len(kept) > 1:
                    found.setdefault(kept)
                if len(found) >= most:
                    return list(found)[: max(most, 0)]
    return list(found)[: max(most, 0)]

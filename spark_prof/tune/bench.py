"""What the stages of a search share: the candidates, what is known of them, engines, and time."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from spark_prof.tune.known_gains import TrialEvidence, swaps_of
from spark_prof.tune.tune_trial import (
    BASE,
    NO_SLOTS,
    Candidate,
    Combination,
    EngineEndedError,
    Measure,
    Pair,
    Slots,
    Stage,
    Timed,
    TuneTrial,
    fits,
    name_of,
    over_batches,
    side_of,
    swaps_only,
)

SWAPS_COST = 1.6
"""Of what an engine takes: all kernels are built and tried, and every side is captured."""
ROUNDS = (1.0, 2.0, 4.0)
"""Time of each round on a candidate that is still open, in those of the first."""
_SHARE = sum(ROUNDS) / 2 + 1  # few are open in the last one; then they are put together
_FAIR_S = 2.0  # that a swap gets at a batch size in the first round before other engines do
_FIRST_COST = 1.35  # the first start fills caches
SHORTEST_S, LONGEST_S = 0.5, 10.0
"""Seconds of steps of one candidate at one batch size, in the first round."""
_SLACK = 1.15  # of starts, which take as long as others did
_STEPS_S = 4.0  # of the steps of one engine at one batch size, until some were timed
_CONFIRMING_STARTS = 4  # of an answer that needs engines of its own: two of it, two of the base
_BESIDE_S = 10.0  # ending engines, drawing the answer


@dataclass
class Budget:
    """The seconds that are left, and what they have to last for.

    Budget(measure).allows(SWAPS_COST)
    """

    measure: Measure
    reserving: bool = True
    """Whether time to confirm the answer is put aside. Where it was not enough for that, what is
    left is better spent on a first look, which `--resume` confirms."""
    shortest_trial_s: float | None = None  # of those that were timed

    @property
    def left(self) -> float:
        """Seconds until the result has to be there."""
        return self.measure.left

    @property
    def start_s(self) -> float:
        """What an engine takes from its start to its end."""
        return self.measure.start_s

    @property
    def steps_s(self) -> float:
        """What an engine's steps take beside its start."""
        return max(self.shortest_trial_s or 0.0, _STEPS_S * self.measure.batches)

    def reserve(self, starts: int = 1) -> float:
        """What confirming takes: one engine of both sides, or so many starts, and the steps."""
        if not self.reserving:
            return 0.0
        return self.start_s * starts * _SLACK + self.steps_s

    def allows(self, engines: float, confirming: int = 1) -> bool:
        """Whether so many engines can be started, and as many more to confirm the answer."""
        return self.left >= engines * self.start_s + self.reserve(confirming)

    def allows_steps(self, seconds: float, engines: float = 0) -> bool:
        """Whether steps can be timed for so long at each batch size, in engines to be started."""
        steps = seconds * self.measure.batches
        return self.left > steps + engines * self.start_s + self.reserve()

    def note(self, trial: TuneTrial) -> None:
        """Learns from a trial how long steps take."""
        if trial.times:
            shortest = self.shortest_trial_s
            self.shortest_trial_s = min(
                trial.seconds if shortest is None else shortest, trial.seconds
            )

    def minutes_for(self, swaps: int, groups: int) -> int:
        """Minutes that a tune takes with starts like these: the base, each engine, the answer.

        Budget(measure).minutes_for(swaps=3, groups=2)

        Args:
            swaps: candidates that share an engine.
            groups: engines that options and variables need.
        """
        starts = _FIRST_COST + (SWAPS_COST if swaps else 0) + groups
        starts += _CONFIRMING_STARTS if groups else SWAPS_COST
        steps = _FAIR_S * _SHARE * swaps * self.measure.batches
        seconds = _SLACK * starts * self.start_s + (2 + groups) * self.steps_s + steps + _BESIDE_S
        return math.ceil(seconds / 60)

    def steps_each(self, swaps: int, groups: int) -> float:
        """Seconds of each swap at a batch size in the first round, of what the rounds may take.

        The engines that options and variables need come after it: all of them, where each swap has
        a fair time nevertheless, and else one.
        """
        reserve = self.reserve(2 if groups else 1)
        times = []
        for engines in (groups, min(groups, 1)):
            spare = self.left - (SWAPS_COST + engines) * self.start_s - reserve
            times.append(spare / (_SHARE * swaps * self.measure.batches))
        return min(max(times[0], min(times[1], _FAIR_S), SHORTEST_S), LONGEST_S)


@dataclass
class StageOutcome:
    """What the stages came to until now."""

    swapped: Combination = BASE  # the fastest of the swaps that share an engine
    best: Combination = BASE  # the fastest of all
    confirmed: Combination = BASE  # in fresh engines
    times: tuple[Timed, ...] = ()  # from its confirmation
    line: str = ""  # why nothing is confirmed though something was faster in the search
    unconfirmed: Combination = BASE  # what that was, where the time was up


@dataclass
class Bench:
    """The engines of a search, asked for trials that are kept as evidence."""

    measure: Measure
    budget: Budget
    evidence: TrialEvidence
    order: dict[str, int]  # of the candidates' words in their table
    swapped: list[str]  # candidates that share an engine with the base
    separate: list[str]  # candidates that need one of their own
    say: Callable[[str], None]  # shows one line of progress
    journal: Callable[[TuneTrial], None]  # is given each trial as it ends
    answer: StageOutcome = field(default_factory=StageOutcome)
    faster_before: frozenset[str] = frozenset()  # candidates that were faster before
    lead: str = ""  # what was tried before all swaps, and is faster

    @classmethod
    def of(
        cls,
        candidates: Sequence[Candidate],
        measure: Measure,
        say: Callable[[str], None],
        alone: frozenset[str],
        journal: Callable[[TuneTrial], None],
        beside_layer: Slots = NO_SLOTS,
    ) -> Bench:
        """A bench on which nothing was measured yet.

        Args:
            alone: swaps for whose copies of weights one engine has no room beside the others'.
            beside_layer: slots that slot `layer` leaves something to swap.
        """
        order = {candidate.words: at for at, candidate in enumerate(candidates)}
        swapped = [w for w in order if swaps_only((w,)) and w not in alone]
        separate = [words for words in order if words not in swapped]
        evidence = TrialEvidence(swapped, measure.floor, beside_layer)
        faster_before = frozenset(c.words for c in candidates if c.known)
        budget = Budget(measure)
        return cls(
            measure, budget, evidence, order, swapped, separate, say, journal,
            faster_before=faster_before,
        )  # fmt: skip

    def together(
        self, number: int, pairs: Sequence[Pair], also: Sequence[Combination], seconds: float,
        stage: Stage = "search",
    ) -> None:  # fmt: skip
        """Measures pairs in one engine; where it ends without a word, its halves apart."""
        waiting = list(pairs)
        while waiting:
            reserve = self._reserve(stage, 1)
            if (within := self.budget.left - reserve) <= 0:
                return
            some = [c for c in also if not self.evidence.holds_bad(c)]
            finished = 0
            try:
                for trial in self.measure.together(stage, number, waiting, some, seconds, within):
                    self.keep(trial)
                    finished += 1
                return
            except EngineEndedError as error:
                waiting = waiting[finished:]
                if self.budget.left <= reserve:
                    return  # its time is up, by nobody's fault
                blamed = list(error.blamed)
                if not blamed and (len(waiting) == 1 or not waiting[0].combination):
                    blamed = [waiting[-1].combination]
                for combination in blamed:
                    self.fail(stage, number, combination, str(error))
                if not blamed:
                    half = len(waiting) // 2
                    self.together(number, waiting[:half], (), seconds, stage)
                    self.together(number, waiting[half:], (), seconds, stage)
                    return
                waiting = [p for p in waiting if not self.evidence.holds_bad(p.combination)]

    def start(
        self, stage: Stage, number: int, combinations: Sequence[Combination], starts: int = 2
    ) -> None:
        """Starts one engine, and keeps the time for those that confirm, unless it is of them."""
        reserve = self._reserve(stage, starts)
        try:
            for trial in self.measure.start(
                stage, number, combinations, self.budget.left - reserve
            ):
                self.keep(trial)
        except EngineEndedError as error:
            if self.budget.left <= reserve and combinations[0]:
                why = "no time was left while its engine started"
                self.evidence.why |= dict.fromkeys((c[-1] for c in combinations if c), why)
                return
            singles: list[Combination] = [c for c in combinations if len(c) == 1]
            if len(singles) > 1 and not error.blamed:
                for combination in singles:
                    self.start(stage, number, [combination], starts)
                return
            for combination in error.blamed if len(singles) > 1 else [combinations[0]]:
                self.fail(stage, number, combination, str(error), paired=False)
            if rest := [c for c in singles if not self.evidence.holds_bad(c)]:
                self.start(stage, number, rest, starts)

    def _reserve(self, stage: Stage, starts: int) -> float:
        """Seconds that are put aside while an engine starts.

        None while the first one does: what it takes is not known, and without it nothing is.
        """
        first = not self.evidence.trials
        return 0.0 if first or stage != "search" else self.budget.reserve(starts)

    def keep(self, trial: TuneTrial) -> None:
        """Files a trial, and says what came of it."""
        self.journal(trial)
        self.evidence.floor = max(self.evidence.floor, self.measure.floor)
        self.evidence.add(trial)
        self.budget.note(trial)
        name = name_of(trial.combination)
        if trial.outcome != "measured":
            ended = "does not run here" if trial.outcome == "not live" else trial.outcome
            self.say(f"{name} {ended}: {trial.why}")
        elif trial.combination and (gain := over_batches(trial.times)):
            over = f" over {name_of(trial.than)}" if trial.than else ""
            self.say(f"{name}: {gain.value:.3f} x{over} (95 % {gain.low:.3f} to {gain.high:.3f})")

    def fail(
        self, stage: Stage, number: int, combination: Combination, why: str, *, paired: bool = True
    ) -> None:
        """Files a trial whose engine ended."""
        than = BASE if paired else None
        self.keep(TuneTrial(stage, number, combination, than, "failed", why))

    def lacks(self, combination: Combination, number: int) -> bool:
        """Whether it has not been started that often, and could be."""
        started = len(self.evidence.starts.get(combination, ()))
        return started <= number and (not combination or not self.evidence.holds_bad(combination))

    def ordered(self, combination: Combination) -> Combination:
        """A combination in the order of the table."""
        return tuple(sorted(combination, key=self.order.__getitem__))

    def fits(self, combination: Combination, words: str) -> bool:
        """Whether a candidate can be added here."""
        return fits(combination, words, self.evidence.beside_layer)

    def beside(self, combination: Combination, words: str) -> Combination:
        """What of a combination can be on together with a candidate.

        Of several swaps in one candidate, those that can and are faster by themselves.
        """
        together: dict[str, None] = {}
        for other in combination:
            parts = [other]
            if other in self.evidence.bundles and not self.fits((words,), other):
                singles = [w for w in self.swapped if len(swaps_of(w)) == 1]
                parts = [w for w in singles if swaps_of(w) <= swaps_of(other)]
                parts = [w for w in parts if self.evidence.worth((w,))]
            together |= dict.fromkeys(part for part in parts if self.fits((words,), part))
        return tuple(together)

    def leave(self, candidates: Sequence[str], why: str) -> None:
        """Says why candidates were not tried."""
        self.evidence.why |= dict.fromkeys(candidates, why)

    def tell(self, subject: str, waiting: int) -> None:
        """Says what is tried now."""
        gains = self.evidence.gains
        best = max(gains, key=lambda combination: gains[combination].value, default=BASE)
        won = f"; best until now {name_of(best)}, {gains[best].value:.2f} x" if best else ""
        left = self.budget.left / 60
        self.say(f"trying {subject}{won}; {waiting} to go here, {left:.1f} min left")


def names(group: Sequence[str]) -> str:
    """The names of candidates, joined by `and`."""
    return " and ".join(name_of((words,)) for words in group)


def engine_groups(candidates: Sequence[str]) -> list[list[str]]:
    """Candidates by what an engine has to be started with: those that differ in swaps share one."""
    groups: dict[object, list[str]] = {}
    for words in candidates:
        side = side_of((words,))
        groups.setdefault((side.options, side.environment), []).append(words)
    return list(groups.values())

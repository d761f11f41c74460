"""What the trials of a tune say of its candidates, until now."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from spark_prof.ab.statistics import Effect, Interval, compare_starts, effect_of_gain
from spark_prof.swaps.swap_settings import Swap
from spark_prof.tune.tune_trial import (
    BASE,
    NO_SLOTS,
    Combination,
    Slots,
    Stage,
    Timed,
    TuneTrial,
    name_of,
    over_batches,
    rivals,
    side_of,
)

_SMALL = 1.005
"""A gain that is below it for sure gets no more time."""
WORTH = 1.01
"""Engine starts of one side are up to a per cent apart, so that a gain below is none before its
interval says so."""

Verdict = Literal[
    "chosen", "faster", "no effect", "slower", "not told", "changes answers", "not live", "failed",
    "not tried",
]  # fmt: skip


class TrialEvidence:
    """Trials, and the gain over the base that they tell of each combination."""

    def __init__(
        self, swapped: Sequence[str], floor: float, beside_layer: Slots = NO_SLOTS
    ) -> None:
        self.floor = floor  # gains up to it are not told apart from another capture
        self.beside_layer = beside_layer  # slots that slot `layer` leaves something to swap
        self._swapped = frozenset(swapped)  # candidates that share an engine with the base
        # Several swaps in one candidate, each of which is one itself, are no rival of them.
        every = {swap for w in swapped if len(swaps_of(w)) == 1 for swap in swaps_of(w)}
        self.bundles = {w for w in swapped if len(swaps_of(w)) > 1 and swaps_of(w) <= every}
        self.trials: list[TuneTrial] = []
        self.gains: dict[Combination, Interval] = {}  # over the base
        self.starts: dict[Combination, list[TuneTrial]] = {}
        self.bad: dict[Combination, TuneTrial] = {}  # what changes answers, does not run, failed
        self.why: dict[str, str] = {}  # what became of a candidate beside its figures

    def add(self, trial: TuneTrial) -> None:
        """Adds a trial."""
        self.trials.append(trial)
        if trial.outcome != "measured":
            self.bad[trial.combination] = trial
        elif trial.than is None:
            self.starts.setdefault(trial.combination, []).append(trial)
            if trial.stage == "search":
                self._gains_of_starts()
        elif trial.stage == "search" and trial.than == BASE and (gain := over_batches(trial.times)):
            self.gains[trial.combination] = gain

    def _gains_of_starts(self) -> None:
        """Each start of the base or of another changes what the starts say of all."""
        base = self.starts.get(BASE, ())
        for combination, starts in self.starts.items():
            times = of_starts(base, [t for t in starts if t.stage == "search"])
            if combination and (gain := over_batches(times)):
                self.gains[combination] = gain

    def last(
        self, combination: Combination, than: Combination | None, stage: Stage = "search"
    ) -> TuneTrial | None:
        """The latest trial of a combination over another."""
        of = (stage, combination, than)
        trials = (t for t in reversed(self.trials) if (t.stage, t.combination, t.than) == of)
        return next(trials, None)

    def holds_bad(self, combination: Combination) -> bool:
        """Whether it, or a candidate in it, ended badly; what changes answers does so anywhere."""
        return combination in self.bad or any((words,) in self.bad for words in combination)

    def claims(self, gain: Interval | None) -> Effect:
        """The effect that an interval shows beyond the noise floor."""
        return effect_of_gain(gain, self.floor)

    def effect(self, combination: Combination) -> Effect:
        """The effect of a combination over the base."""
        return self.claims(self.gains.get(combination))

    def lasting(self, combination: Combination) -> bool:
        """Whether it may still be part of the answer."""
        gain = self.gains.get(combination)
        if gain is None or combination in self.bad or gain.high <= 1:
            return False
        return not self.beaten_by(combination)

    def beaten_by(self, combination: Combination) -> str:
        """A rival whose interval lies above; empty for none."""
        gain = self.gains[combination]
        return next(
            (
                other
                for (other,), rival_gain in self._gains_of_one()
                if rival_gain.low > gain.high
                and not self.bundles & {other, *combination}
                and any(self.are_rivals(other, words) for words in combination)
            ),
            "",
        )

    def _gains_of_one(self) -> list[tuple[tuple[str], Interval]]:
        return [((c[0],), g) for c, g in self.gains.items() if len(c) == 1 and c not in self.bad]

    def is_open(self, combination: Combination) -> bool:
        """Whether more time could tell more: against the base, or against a rival."""
        if not self.lasting(combination):
            return False
        if self.effect(combination) != "faster":
            return self.gains[combination].high > _SMALL
        interval = self.gains[combination]
        return any(
            self.are_rivals(other, combination[0])
            and self.lasting((other,))
            and gain.high > interval.low
            for (other,), gain in self._gains_of_one()
            if (other,) != combination and not self.bundles & {other, *combination}
        )

    def are_rivals(self, one: str, other: str) -> bool:
        """Whether two candidates cannot be on together here."""
        return rivals(one, other, self.beside_layer)

    def worth(self, combination: Combination) -> bool:
        """Whether it may be in the answer, before anything is confirmed."""
        gain = self.gains.get(combination)
        if gain is None or self.holds_bad(combination) or gain.high <= 1:
            return False
        if all(words in self._swapped for words in combination):
            return self.claims(gain) == "faster"
        return gain.value > WORTH

    def verdict(self, words: str, answer: Combination, line: str) -> tuple[Verdict, str]:
        """Of a candidate's words, with the answer, or with the line why there is none."""
        why = self.why.get(words, "")
        if words in answer:
            return "chosen", ""
        if bad := self.bad.get((words,)):
            return ("failed" if bad.outcome == "measured" else bad.outcome), bad.why
        gain = self.gains.get((words,))
        if gain is None:
            if base := self.bad.get(BASE):
                why = f"the engine as it is could not be measured: {base.why}"
            return "not tried", why or "the time was up"
        if gain.high == math.inf:
            return "not told", why or "one engine start each tells no interval"
        effect = self.claims(gain)
        if effect == "not told":
            why = why or "its interval is too wide to tell; give more --minutes"
        if other := self.beaten_by((words,)):
            why = f"{name_of((other,))} is faster in its place"
        if effect == "faster" and not why:
            why = "not in the answer, which was confirmed without it" if answer else line
            if rival := next((o for o in answer if self.are_rivals(o, words)), ""):
                why = f"{name_of((rival,))} is in its place"
        return effect, why


def swaps_of(words: str) -> frozenset[Swap]:
    """The swaps of a candidate."""
    return frozenset(side_of((words,)).swaps)


def of_starts(
    base: Sequence[TuneTrial], starts: Sequence[TuneTrial], other_starts: Sequence[TuneTrial] = ()
) -> tuple[Timed, ...]:
    """The gain of engine starts at each batch size; of one start, or of two in all, anything.

    How far apart starts of the base are says nothing of another's, whose time the host may make.
    Of others of the same combination counts only how far apart they are.
    """
    if not base or not starts:
        return ()
    all_times = []
    for timed in starts[0].times:
        than_us, own_us, other_us = (
            [
                t.own_us
                for trial in trials
                for t in trial.times
                if t.requests == timed.requests and t.own_us
            ]
            for trials in (base, starts, other_starts)
        )
        estimate = compare_starts(than_us, own_us, 0, fewest=1, other_b_us=other_us)
        times = Timed.of(timed.requests, estimate)
        once = len(own_us) + len(other_us) < 2
        if (times.gain is None or once) and estimate.a_us and estimate.b_us:
            value = estimate.a_us / estimate.b_us
            times = replace(times, gain=Interval(value, 0.0, math.inf))
        all_times.append(times)
    return tuple(all_times)

"""The time of a search: what a start costs, and what is put aside to confirm the answer."""

from __future__ import annotations

import math
from dataclasses import dataclass

from spark_prof.tune.tune_trial import Measure, TuneTrial

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

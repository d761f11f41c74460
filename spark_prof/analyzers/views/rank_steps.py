"""Which rank held the others up when: steps in a few groups, so that thousands can be drawn."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from spark_prof.analyzers.model import SlowStep


@dataclass(frozen=True)
class HeldUp:
    """How long the others waited for each rank, in groups of neighbouring steps.

    Attributes:
        leads: of each the lowest rank of its team, whose numbers the steps have: neighbouring
            ranks are a team.
        us: mean over the steps of a group, one row a rank and one column a group. The team's
            others waited so long on average for a rank in the steps in which it came last.
        last: in how many steps of the group the rank came last.
        worst: of each cell the step in which the others waited the longest, -1 for none.
    """

    ranks: tuple[int, ...]
    leads: tuple[int, ...]
    us: npt.NDArray[np.float64]
    last: npt.NDArray[np.int64]
    first_step: npt.NDArray[np.int64]
    last_step: npt.NDArray[np.int64]
    worst: npt.NDArray[np.int64]


def held_up(steps: Sequence[SlowStep], ranks: Sequence[int], most: int = 60) -> HeldUp:
    """Sums up the steps of all teams.

    Args:
        ranks: the rows to make, of which the slowest ranks are some.
    """
    teams: dict[tuple[int, int], list[SlowStep]] = defaultdict(list)
    for step in steps:
        teams[step.stage, step.replica].append(step)
    longest = max(map(len, teams.values()), default=0)
    groups = min(longest, most)
    row = {rank: place for place, rank in enumerate(ranks)}
    shape = len(row), groups
    total, last = np.zeros(shape), np.zeros(shape, np.int64)
    counts, most_us, worst = np.zeros(shape), np.zeros(shape), np.full(shape, -1)
    first_step = np.full(groups, np.iinfo(np.int64).max)
    last_step = np.full(groups, -1)
    for own in teams.values():
        for place, step in enumerate(sorted(own, key=lambda step: step.step)):
            group = place * groups // longest
            first_step[group] = min(first_step[group], step.step)
            last_step[group] = max(last_step[group], step.step)
            if step.slowest not in row:
                continue
            cell = row[step.slowest], group
            total[cell] += step.held_up_us
            last[cell] += 1
            if step.held_up_us > most_us[cell]:
                most_us[cell], worst[cell] = step.held_up_us, step.step
    for own in teams.values():
        # Every rank of a team has the team's steps, whoever came last in them.
        members = {row[step.slowest] for step in own if step.slowest in row}
        sizes = np.bincount(np.arange(len(own)) * groups // longest, minlength=groups)
        counts[sorted(members)] += sizes
    us = np.divide(total, counts, out=np.zeros(shape), where=counts > 0)
    size = max(len(ranks) // max(len(teams), 1), 1)
    leads = tuple(ranks[place // size * size] for place in range(len(ranks)))
    return HeldUp(tuple(ranks), leads, us, last, first_step, last_step, worst)

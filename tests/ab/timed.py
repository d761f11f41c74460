"""Steps of an engine with known times."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from spark_prof.ab.timed_steps import Block, TimedStep

STEP_US = 3000.0
START_NS = 1_700_000_000_000_000_000


def timed(
    plan: Sequence[Block],
    step_us: Callable[[str, int, int], float],
    context: Callable[[int], int] = lambda place: 1000 + place,
) -> list[TimedStep]:
    """The steps of a plan.

    The time of each comes from its side, its place among all and its place in the block.
    """
    steps: list[TimedStep] = []
    now = START_NS
    for number, block in enumerate(plan):
        for index in range(block.steps):
            place = len(steps)
            duration = round(step_us(block.side, place, index) * 1e3)
            now += duration
            steps.append(TimedStep(number, block.side, index, duration, now, 0, 1, context(place)))
    return steps

"""What a result comes to: faster, slower or neither, and the exit code."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from spark_prof.ab.result import AARun, Result, Run

__all__ = ["Effect", "Outcome", "chosen_run", "effect_of", "exit_code", "floor_of", "outcome_of"]

Effect = Literal["faster", "slower", "no effect", "not told"]
"""What one run says of side b; "not told" where there is no interval."""

Outcome = Literal["faster", "slower", "no effect", "not told", "gate failed", "not live"]
"""What a whole result says of it; "not live" where none of its swaps took the place of a kernel."""


def effect_of(run: Run, aa: Sequence[AARun]) -> Effect:
    """What a run says, by its whole interval.

    An effect counts that is further from none than the side was from itself.
    """
    gain = run.estimate.gain
    if gain is None:
        return "not told"
    floor = floor_of(run, aa) or 0.0
    if gain.low > 1 + floor:
        return "faster"
    if gain.high * (1 + floor) < 1:
        return "slower"
    return "no effect"


def floor_of(run: Run, aa: Sequence[AARun]) -> float | None:
    """How far side a was from itself, as a share: at the run's batch size, or else the furthest.

    None where it was never compared with itself.
    """
    floors = [
        (each.requests, max(each.test.floor, 0.0)) for each in aa if each.test.floor is not None
    ]
    same = [floor for requests, floor in floors if requests == run.requests]
    return max(same or [floor for _, floor in floors], default=None)


def chosen_run(result: Result) -> Run | None:
    """The run that answers for the result: the smallest batch that decodes and has a gain.

    Without one with a gain the smallest batch, without decoding the first prompt's length.
    """
    return min(
        result.runs,
        key=lambda run: (
            run.estimate.gain is None,
            run.phase != "decode",
            run.requests,
            run.prompt_tokens,
        ),
        default=None,
    )


def outcome_of(result: Result) -> Outcome:
    """What a result says of side b."""
    if any(not gate.verdict.passed for gate in result.gates):
        return "gate failed"
    if _none_live(result):
        return "not live"
    run = chosen_run(result)
    return effect_of(run, result.aa) if run else "not told"


def exit_code(result: Result) -> int:
    """1 where the gate failed, 2 where the run ended early, else 0."""
    if outcome_of(result) == "gate failed":
        return 1
    return 2 if result.failure else 0


def _none_live(result: Result) -> bool:
    """Whether side b differs in swaps only, and all of them fell back."""
    if result.mode != "one engine" or not result.sides[1].swaps or not result.swaps:
        return False
    return not any(swap.live for rank in result.swaps for swap in rank.swaps if swap.side == "b")

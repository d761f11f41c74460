"""What a result comes to: faster, slower or neither, and the exit code."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from spark_prof.ab.accuracy_gate import Figures
from spark_prof.ab.result import AARun, Result, Run
from spark_prof.ab.statistics import (
    claimed,
    floor,
    has_spread,
    minimum_effect,
    spread_of,
    why_unknown,
)

Effect = Literal["faster", "slower", "no effect", "not told"]
"""What one run says of side b; "not told" where there is no interval."""

_AHEAD = 0.95
_BEHIND = 0.5

RANDOM_WEIGHTS = "the weights are random"
"""How a result says among what is missing that its engine had no checkpoint."""

_FEWEST_DECIDED = 8

Outcome = Literal["faster", "slower", "no effect", "not told", "gate failed", "not live"]
"""What a whole result says of it; "not live" where none of its swaps took the place of a kernel."""


def effect_of(run: Run, aa: Sequence[AARun]) -> Effect:
    """What a run says, by the rule of `spark_prof.ab.statistics`: its whole interval decides."""
    gain = run.estimate.gain
    if gain is None:
        return "not told"
    faster, slower = claimed(gain.low, gain.high, floor_of(run, aa) or 0.0)
    return "faster" if faster else "slower" if slower else "no effect"


def floor_of(run: Run, aa: Sequence[AARun]) -> float | None:
    """The share below which no effect is claimed; None where a was never compared with itself."""
    floors = [
        float(floor(each.test.passed, each.test.floor, each.captured_again))
        for each in _itself(run, aa)
    ]
    return max(floors, default=None)


def host_ahead(run: Run) -> bool:
    """Whether the device did not wait for the host, on neither side: all is kernels."""
    return all(share is not None and share >= _AHEAD for share in (run.ahead_a, run.ahead_b))


def host_behind(run: Run) -> tuple[str, ...]:
    """The sides whose device waited for the host in most of the steps."""
    sides = (("a", run.ahead_a), ("b", run.ahead_b))
    return tuple(side for side, share in sides if share is not None and share < _BEHIND)


def detectable_in(run: Run, aa: Sequence[AARun]) -> float | None:
    """The minimum detectable effect as a share, by the whole rule; None where it is not known."""
    if why_unknown(run.estimate):
        return None
    tests = [
        spread_of(each.test.estimate, itself=True, captured_again=each.captured_again)
        for each in _itself(run, aa)
        if has_spread(each.test.estimate)
    ]
    return minimum_effect(spread_of(run.estimate), tests)


def with_detectable(run: Run, aa: Sequence[AARun]) -> Run:
    """The run as it stands in a result: its minimum detectable effect is that of the whole rule."""
    return replace(run, estimate=replace(run.estimate, detectable=detectable_in(run, aa)))


def _itself(run: Run, aa: Sequence[AARun]) -> list[AARun]:
    """The tests of side a against itself at the run's batch size, or else all of them."""
    tests = [each for each in aa if each.test.floor is not None]
    return [each for each in tests if each.requests == run.requests] or tests


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


def decided(figures: Figures) -> bool:
    """Whether more than rounding decides what both sides say at most of the positions.

    At fewer positions than the gate needs in all, nothing is decided either.
    """
    clear = figures.positions - figures.not_finite - figures.near_ties
    return clear >= _FEWEST_DECIDED and 2 * clear > figures.positions


def has_random_weights(result: Result) -> bool:
    """Whether an engine had random weights, by its arguments or by what it said itself."""
    return any(line.startswith(RANDOM_WEIGHTS) for line in result.missing) or any(
        _load_format(side.arguments) == "dummy" for side in result.sides
    )


def _load_format(arguments: Sequence[str]) -> str:
    """The last one that is given; empty without one."""
    found = ""
    for at, word in enumerate(arguments):
        name, equals, value = word.replace("_", "-").partition("=")
        if name == "--load-format":
            found = value if equals else "".join(arguments[at + 1 : at + 2])
    return found.lower()


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

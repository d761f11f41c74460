"""The plan of a run, A B B A and B A A B, its timed steps, and the quads that they make.

In a quad A B B A both sides have the same mean place in time, so that what drifts in proportion to
time, as the context does while tokens are added, is the same for both. What grows with its square
is not: its sign turns over in B A A B. Quads follow each other as in the Thue-Morse sequence,
A B B A  B A A B  B A A B  A B B A: over every two of them a drift of the second order cancels, over
every four one of the third (Prouhet 1851; Allouche and Shallit, The ubiquitous Prouhet-Thue-Morse
sequence, 1999).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from spark_prof.errors import CommandError

AGAIN = "a again"
"""Side a under another name: the same graphs, which an A/A run must find equal."""

SETTLE = 2
"""First steps of a block that are not counted.

The first runs while the caches hold what the other side read, and with asynchronous scheduling the
host has prepared it before the switch; its duration ends only with the start of the second.
"""
_MOST_QUADS = 1024


@dataclass(frozen=True)
class Block:
    """Steps that follow each other on one side."""

    side: str  # a, b, a2 or AGAIN
    steps: int  # how many, the first ones that do not count included


def block_order(quads: int, steps: int, sides: tuple[str, str] = ("a", "b")) -> tuple[Block, ...]:
    """The blocks of a plan, four a quad; an even number of quads lets quadratic drift cancel."""
    if quads < 1 or steps <= SETTLE:
        raise CommandError(
            f"{quads} quads of blocks of {steps} steps cannot be measured; "
            f"give at least 1 quad and {SETTLE + 1} steps"
        )
    a, b = (Block(side, steps) for side in sides)
    turned = (number.bit_count() % 2 for number in range(quads))
    return tuple(block for second in turned for block in ((b, a, a, b) if second else (a, b, b, a)))


def running(side: str) -> str:
    """The side that the engine runs for one of a plan."""
    return "a" if side == AGAIN else side


def quads_within(seconds: float, step_seconds: float, steps: int) -> int:
    """How many quads fit in a time; an even number, at least 2 and at most 1,024.

    The time of a step is a first estimate, of the slower side.
    """
    quad = 4 * steps * step_seconds
    fitting = int(seconds / quad) if quad > 0 and seconds > 0 else 0
    return max(2, min(fitting, _MOST_QUADS) // 2 * 2)


_FEWEST_STEPS = 4
"""Of a block, after settling: the middle half of fewer is a single step."""
_CONTEXT_APART = 0.01


class TimedStep(msgspec.Struct, frozen=True, array_like=True):
    """One step of the plan, as a worker's `spark_prof_times` tells it."""

    block: int  # its place in the plan, from 0
    side: str  # a, b or a2
    index: int  # its place in the block, from 0
    duration_ns: int  # from its start to the start of the next step
    end_ns: int  # when it ended, since 1970
    prefill_tokens: int  # of prompts, in this step
    decode_requests: int  # requests that it gave a token each
    context_tokens: int  # that its attention read, over all requests
    ahead: bool | None = None
    """Whether the device was still at the step before when the host had launched this one; None
    where nothing tells."""

    @property
    def counts(self) -> bool:
        """Whether the step counts: its block has settled, and it has a duration."""
        return self.index >= SETTLE and self.duration_ns > 0


@dataclass(frozen=True)
class Dropped:
    """A quad that does not count."""

    quad: int  # its place in the plan, from 0
    why: str  # one line


@dataclass(frozen=True)
class Quad:
    """Four blocks, two of each side, in the order A B B A or B A A B."""

    number: int  # its place in the plan, from 0
    a_us: float  # time of a step on the first side, the mean of two blocks; see `middle_mean`
    b_us: float  # the same of the second side
    steps: int  # that count, of both sides
    spans: tuple[tuple[str, int, int], ...]
    """Start and end of each block since 1970, in ns, with its side."""


def share_ahead(steps: Sequence[TimedStep], side: str) -> float | None:
    """The share of a side's steps in which the device did not wait for the host.

    None where nothing tells. A share of 1 says that kernels alone make the time of a step; with
    one of 0 the host makes it, and what kernels save is hidden behind it.
    """
    ahead = [step.ahead for step in steps if step.side == side and step.ahead is not None]
    return sum(ahead) / len(ahead) if ahead else None


def make_quads(
    steps: Sequence[TimedStep], sides: tuple[str, str] = ("a", "b")
) -> tuple[tuple[Quad, ...], tuple[Dropped, ...]]:
    """The quads of a plan, and those that are not whole.

    What counts of a block is the mean of the middle half of its steps.
    """
    blocks: dict[int, list[TimedStep]] = {}
    for step in steps:
        blocks.setdefault(step.block, []).append(step)
    quads: list[Quad] = []
    dropped: list[Dropped] = []
    for number in sorted({block // 4 for block in blocks}):
        four = [blocks.get(4 * number + place, []) for place in range(4)]
        counted = [[step for step in block if step.index >= SETTLE] for block in four]
        why = _unusable(counted, sides)
        if why:
            dropped.append(Dropped(number, why))
        else:
            spans = tuple(
                (
                    block[0].side,
                    min(step.end_ns - step.duration_ns for step in block),
                    max(step.end_ns for step in block),
                )
                for block in four
            )
            a_us, b_us = (_mean(counted, side, _time_us) for side in sides)
            quads.append(Quad(number, a_us, b_us, sum(map(len, counted)), spans))
    return tuple(quads), tuple(dropped)


def middle_mean(durations: Sequence[int]) -> float:
    """The mean of the middle half, the interquartile mean.

    A hiccup of the host in up to a quarter of the steps moves it hardly, as it would not move the
    median; but a step that starts late, so that one is longer and the next one shorter, cancels as
    it does in a mean, and it varies less than a median does.
    """
    ordered = sorted(durations)
    cut = len(ordered) // 4
    middle = ordered[cut : len(ordered) - cut]
    return math.fsum(middle) / len(middle)


def _unusable(counted: list[list[TimedStep]], sides: tuple[str, str]) -> str:
    """Why four blocks are no quad; empty where they are one."""
    if any(len(block) < _FEWEST_STEPS for block in counted):
        fewest = min(len(block) for block in counted)
        return f"a block has {fewest} steps that count; {_FEWEST_STEPS} are needed"
    order = [{step.side for step in block} for block in counted]
    a, b = {sides[0]}, {sides[1]}
    if order not in ([a, b, b, a], [b, a, a, b]):
        return f"its blocks are not on {sides[0]} and {sides[1]} in the order of a quad"
    if any(step.duration_ns <= 0 for block in counted for step in block):
        return "a step has no duration"
    one, other = (_mean(counted, side, _context) for side in sides)
    if abs(one - other) > _CONTEXT_APART * max(one, other):
        return f"the sides had contexts of {one:,.0f} and {other:,.0f} tokens"
    return ""


def _mean(
    blocks: Sequence[list[TimedStep]], side: str, of_block: Callable[[list[TimedStep]], float]
) -> float:
    """The mean of a figure of the blocks of a side."""
    figures = [of_block(block) for block in blocks if block[0].side == side]
    return math.fsum(figures) / len(figures)


def _context(block: list[TimedStep]) -> float:
    return math.fsum(step.context_tokens for step in block) / len(block)


def _time_us(block: list[TimedStep]) -> float:
    return middle_mean([step.duration_ns for step in block]) / 1e3

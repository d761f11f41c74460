"""In which order the sides run: blocks of steps, A B B A and B A A B.

In a quad A B B A both sides have the same mean place in time, so that what drifts in proportion to
time, as the context does while tokens are added, is the same for both. What grows with its square
is not: its sign turns over in B A A B. Quads follow each other as in the Thue-Morse sequence,
A B B A  B A A B  B A A B  A B B A: over every two of them a drift of the second order cancels, over
every four one of the third (Prouhet 1851; Allouche and Shallit, The ubiquitous Prouhet-Thue-Morse
sequence, 1999).
"""

from __future__ import annotations

from dataclasses import dataclass

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
    """Steps that follow each other on one side.

    Attributes:
        side: a, b, a2 or AGAIN.
        steps: how many, the first ones that do not count included.
    """

    side: str
    steps: int


def block_order(quads: int, steps: int, sides: tuple[str, str] = ("a", "b")) -> tuple[Block, ...]:
    """The blocks of a plan, four a quad.

    Args:
        quads: how many; an even number lets drift of the second order cancel.
        steps: of a block.
        sides: what is compared.

    Raises:
        CommandError: there is nothing to plan.
    """
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

    Args:
        seconds: to spend on one measurement.
        step_seconds: a first estimate of the time of a step, of the slower side.
        steps: of a block.
    """
    quad = 4 * steps * step_seconds
    fitting = int(seconds / quad) if quad > 0 and seconds > 0 else 0
    return max(2, min(fitting, _MOST_QUADS) // 2 * 2)

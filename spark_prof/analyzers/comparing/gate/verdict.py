"""Says whether a limit is kept, where noise may hide or feign a change.

A change (in per cent, or with a sign) fails where it is certain and may be as large as the limit:
the 95 % interval does not contain 0 and reaches the limit. It passes where the interval does not
reach the limit, and where it is certain to go the other way. Where the interval contains 0 and
reaches the limit, the recordings do not tell: undecided. A limit on the other side of 0 is a
demand: it is kept only by a change that is certain and may be as large.

A level (no sign, or a share) is compared as it was measured, without an allowance for noise.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from spark_prof.analyzers.comparing.gate.expression import Expression, Unit
from spark_prof.analyzers.comparing.gate.reading import Reading, read
from spark_prof.analyzers.comparing.model import Comparison
from spark_prof.errors import CommandError

__all__ = ["Checked", "Outcome", "check"]

Outcome = Literal["failed", "passed", "undecided"]

_COMPARE: Mapping[str, Callable[[float, float], bool]] = MappingProxyType(
    {">": operator.gt, ">=": operator.ge, "<": operator.lt, "<=": operator.le}
)
_UNIT_OF: Mapping[str, tuple[Unit, ...]] = MappingProxyType(
    {
        "time": ("%", "us"),
        "rate": ("%", "tokens/s"),
        "share": ("%", ""),
        "count": ("",),
    }
)
_EXAMPLES = MappingProxyType(
    {
        "time": "3%, +50us or 5ms",
        "rate": "-3% or 200 tokens/s",
        "share": "0.95 or -2%",
        "count": "0",
    }
)
_EDGE = 1e-9
"""Limits are decimal fractions and changes binary ones: this much counts as equal."""


@dataclass(frozen=True)
class Checked:
    """One limit and what became of it.

    Attributes:
        expression: the limit.
        outcome: failed, passed or undecided.
        reading: what was compared.
        relative: whether the limit is a share of side a's figure.
        is_change: whether it limits a change, and not side b's figure.
        why: why nothing could be decided, or what is missing; empty where the figures say it.
    """

    expression: Expression
    outcome: Outcome
    reading: Reading
    relative: bool
    is_change: bool
    why: str = ""


def check(found: Comparison, expressions: Iterable[Expression]) -> tuple[Checked, ...]:
    """Checks every limit.

    Raises:
        CommandError: a metric is unknown, or its unit is another one.
    """
    return tuple(_checked(found, each) for each in expressions)


def _checked(found: Comparison, limit: Expression) -> Checked:
    reading = read(found, limit.metric)
    if limit.operator == "missing":
        gone = "side b has none" if not reading.there else ""
        return Checked(limit, "passed" if reading.there else "failed", reading, False, False, gone)
    if limit.unit not in _UNIT_OF[reading.kind]:
        raise CommandError(
            f"--fail-on {limit.text[:100]!r}: {'.'.join(limit.metric)} is a {reading.kind}; "
            f"write {_EXAMPLES[reading.kind]}"
        )
    relative = limit.unit == "%" and reading.kind in ("time", "rate")
    if not relative and not limit.signed:
        outside = _COMPARE[limit.operator](reading.change.b, limit.value)
        return Checked(limit, "failed" if outside else "passed", reading, False, False)
    if reading.short:
        return Checked(limit, "undecided", reading, relative, True, reading.short)
    outcome = _of_change(limit, reading, relative)
    return Checked(limit, outcome, reading, relative, True)


def _of_change(limit: Expression, reading: Reading, relative: bool) -> Outcome:
    change = reading.change
    low, high = change.low, change.high
    if relative:
        low, high = change.share(low), change.share(high)
    bound = limit.value
    if limit.operator[0] == "<":
        # The same question in the mirror.
        low, high, bound = -high, -low, -bound
    if reading.kind in ("share", "count"):
        reached = high > bound + _EDGE or (limit.operator[1:] == "=" and high >= bound - _EDGE)
        return "failed" if reached else "passed"
    if bound < 0:
        return "passed" if high < 0 and low <= bound + _EDGE else "failed"
    reaches = high >= bound - _EDGE
    if low > 0 and reaches:
        return "failed"
    # With a limit of 0 every noise reaches it, and no change is certain: that passes.
    return "undecided" if reaches and high > 0 and bound > 0 else "passed"

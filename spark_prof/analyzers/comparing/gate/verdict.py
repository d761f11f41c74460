"""Says whether a limit is kept, where noise may hide or feign a change.

A limit fails where the whole 95 % interval lies beyond it, and passes where the whole interval lies
within it. Else the recordings do not tell: undecided. That holds for changes (in per cent, or with
a sign) by the interval of the change, and for levels by that of side b's own figure. Coverage and
numbers of findings have no noise: their interval is a point.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Literal

from spark_prof.analyzers.comparing.gate.expression import Expression, Unit
from spark_prof.analyzers.comparing.gate.reading import Reading, read
from spark_prof.analyzers.comparing.model import Comparison
from spark_prof.analyzers.comparing.noise import Change, interval_of
from spark_prof.analyzers.comparing.noise import change as change_of
from spark_prof.errors import CommandError

Outcome = Literal["failed", "passed", "undecided"]

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
    is_change = relative or limit.signed
    if reading.short:
        return Checked(limit, "undecided", reading, relative, is_change, reading.short)
    outcome = _of(limit, reading, relative, is_change)
    why = _undecided(found, limit, reading, relative, is_change) if outcome == "undecided" else ""
    return Checked(limit, outcome, reading, relative, is_change, why)


def _of(limit: Expression, reading: Reading, relative: bool, is_change: bool) -> Outcome:
    if is_change:
        return of_change(limit, reading, relative)
    return _of_level(limit, reading.change)


def of_change(limit: Expression, reading: Reading, relative: bool) -> Outcome:
    """What becomes of a limit on a change.

    Args:
        limit: the limit.
        reading: what is held against it.
        relative: whether the limit is a share of side a's figure.
    """
    change = reading.change
    return _outcome(limit, *(change.shares if relative else (change.low, change.high)))


def _of_level(limit: Expression, change: Change) -> Outcome:
    own = change.figures[1]
    return _outcome(limit, *(interval_of(own) if own else (change.b, change.b)))


def _outcome(limit: Expression, low: float, high: float) -> Outcome:
    bound = limit.value
    if limit.operator[0] == "<":
        # The same question in the mirror.
        low, high, bound = -high, -low, -bound
    # Reaching the limit is beyond it for >= and within it for >.
    bound += -_EDGE if limit.operator[1:] == "=" else _EDGE
    if low > bound:
        return "failed"
    return "passed" if high <= bound else "undecided"


def _undecided(
    found: Comparison, limit: Expression, reading: Reading, relative: bool, is_change: bool
) -> str:
    """Why the recordings do not tell, and what would."""
    if not found.assumed:
        return "too noisy to tell; record more engine starts a side, or more steps"
    which = "one recording a side" if not any(found.further) else "one recording on a side"
    several = "record several and run spark-prof compare A1,A2,A3 B1,B2,B3"
    a, b = ([replace(each, start=0.0) for each in side] for side in reading.change.figures)
    sure = replace(reading, change=change_of(a, b)) if a and b else reading
    if _of(limit, sure, relative, is_change) == "undecided":
        return f"{which}, and its steps vary too much to tell; {several}, or record more steps"
    return (
        f"{which}: engine starts are taken to differ by up to {100 * found.assumed:g} %; {several}"
    )

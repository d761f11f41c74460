"""How much faster one side is than the other, and how sure that is."""

from __future__ import annotations

from dataclasses import dataclass

from spark_prof.ab.steps import Dropped

__all__ = ["AATest", "Estimate", "Interval"]


@dataclass(frozen=True)
class Interval:
    """A value and its 95 % confidence interval."""

    value: float
    low: float
    high: float

    @property
    def half_width(self) -> float:
        """Half of the interval."""
        return (self.high - self.low) / 2


@dataclass(frozen=True)
class Estimate:
    """What a run of quads says of two sides.

    A step that decodes gives each of its requests one token: its time is the time per token.

    Attributes:
        a_us: time of a step on the first side, None where nothing counts.
        b_us: time of a step on the second side.
        gain: a_us / b_us; None where too little counts.
        saved_us: a_us - b_us.
        detectable: the smallest effect that this run would have seen four times out of five, as a
            share: 0.004 is a gain of 1.004.
        quads: that count.
        steps: that count, of both sides.
        dropped: quads that do not count.
        method: what the interval rests on, in words.
        missing: why there is no gain; empty where there is one.
    """

    a_us: float | None
    b_us: float | None
    gain: Interval | None
    saved_us: Interval | None
    detectable: float | None
    quads: int
    steps: int
    dropped: tuple[Dropped, ...]
    method: str
    missing: str


@dataclass(frozen=True)
class AATest:
    """A side compared with itself, which must come out as no effect.

    Attributes:
        estimate: as of two sides.
        passed: the interval of the gain contains 1; False where there is none.
        floor: how far from 1 the interval reaches, as a share: an effect within it is not told
            apart from the measurement's own; None where there is no interval.
        line: the verdict in words.
    """

    estimate: Estimate
    passed: bool
    floor: float | None
    line: str

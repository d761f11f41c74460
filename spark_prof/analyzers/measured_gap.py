"""Splits what somebody measured between two sides into bytes, kernels and the rest."""

from __future__ import annotations

from dataclasses import dataclass

from spark_prof.analyzers.why_sides import WhySide

BYTES, KERNELS, BEYOND = "bytes", "kernels", "beyond"
WAITS, OUTSIDE = "waits", "outside"


@dataclass(frozen=True)
class GapPart:
    """One part of the time that a token takes on both sides."""

    kind: str  # bytes, kernels, beyond (all but bytes), waits or outside (of the recorded step)
    slow_us: float
    fast_us: float
    share: float | None  # of the gap; None where there is none

    @property
    def us(self) -> float:
        """By how much it is longer on the slower side."""
        return self.slow_us - self.fast_us


@dataclass(frozen=True)
class Gap:
    """The time between two tokens of a sequence, on two sides that were measured."""

    slow: str
    fast: str
    slow_us: float
    fast_us: float
    parts: tuple[GapPart, ...]  # which add up to both; none where a side was `too_fast`
    too_fast: tuple[str, ...] = ()  # sides measured to be faster than their lower bound
    bytes_us: float = 0.0  # what the slower would take if it lost as much beyond its bytes
    bytes_known: bool = True  # of every component of both

    @property
    def us(self) -> float:
        """By how much a token takes longer on the slower side."""
        return self.slow_us - self.fast_us


def gap_of(a: WhySide, b: WhySide, bytes_known: bool = True) -> Gap | None:
    """What lies between the measured rates of two sides; None where one has none.

    35 and 44 tokens/s of checkpoints that read 4.16 and 3.93 GB at 231 GB/s are 5.84 ms apart, of
    which their bytes explain 0.99 ms.

    Args:
        bytes_known: whether both tell what each component reads.
    """
    if a.rate is None or b.rate is None:
        return None
    slow, fast = sorted((a, b), key=lambda side: -(side.rate.step_us if side.rate else 0.0))
    assert slow.rate is not None
    assert fast.rate is not None
    step_times = slow.rate.step_us, fast.rate.step_us
    sides = tuple(zip((slow, fast), step_times, strict=True))
    too_fast = tuple(side.name for side, us in sides if us < side.bound_us)
    gap = Gap(slow.name, fast.name, *step_times, (), too_fast, bytes_known=bytes_known)
    if too_fast:
        return gap
    rows = [_taken_apart(side, us, bool(slow.us and fast.us), bytes_known) for side, us in sides]
    between = step_times[0] - step_times[1]
    parts = tuple(
        GapPart(kind, rows[0][kind], rows[1][kind],
                (rows[0][kind] - rows[1][kind]) / between if between else None)
        for kind in rows[0]
    )  # fmt: skip
    by_bytes = step_times[1] - fast.bound_us + slow.bound_us if bytes_known else 0.0
    return Gap(gap.slow, gap.fast, *step_times, parts, bytes_us=by_bytes, bytes_known=bytes_known)


def _taken_apart(side: WhySide, us: float, recorded: bool, bytes_known: bool) -> dict[str, float]:
    """The parts of what was measured of a side, which add up to it."""
    bound = side.bound_us if bytes_known else 0.0
    parts = {BYTES: bound} if bytes_known else {}
    if not recorded:
        return parts | {BEYOND: us - bound}
    return parts | {
        KERNELS: side.kernels_us - bound,
        WAITS: side.waits_us,
        OUTSIDE: us - (side.us or 0.0),
    }

"""How long the engine stood still for its recording, as the recorded worker counted it."""

from __future__ import annotations

from dataclasses import dataclass

from spark_prof.analyzers.lookup import mapping_in
from spark_prof.traces.bundle import Bundle

_TOLD_LONGEST_NS = 50_000_000
_TOLD_SHARE = 0.01
"""A pause as long as this, or pauses of this share of the recorded time, are worth a note."""


@dataclass(frozen=True)
class Pauses:
    """The pauses of one rank, in which it wrote what was recorded; no step contains them."""

    count: int
    us: float  # all of them
    longest_us: float
    share: float | None  # of the time from the first step to the last; None without two steps

    @property
    def long(self) -> bool:
        """Whether those who sent requests may have felt them."""
        return self.longest_us > _TOLD_LONGEST_NS / 1e3 or (self.share or 0.0) > _TOLD_SHARE


def pauses_of(bundle: Bundle, rank: int) -> Pauses | None:
    """What the worker said; None where it said nothing, as an earlier spark-prof or an import.

    Example: 19 pauses, 17.4 s in all, up to 1.6 s, in a recording of 50 s.
    """
    pauses = mapping_in(bundle.facts(rank), "pauses")
    numbers = [pauses.get(name) for name in ("count", "total_ns", "longest_ns")]
    if not all(type(number) is int and 0 <= number < 1 << 62 for number in numbers):
        return None
    count, total, longest = (int(number) for number in numbers if isinstance(number, int))
    if not count:
        return None
    steps = bundle.frame("steps", rank, ["start_ns", "end_ns"])
    length = int(steps["end_ns"].max() - steps["start_ns"].min()) if len(steps) > 1 else 0
    return Pauses(count, total / 1e3, longest / 1e3, total / length if length > 0 else None)

"""Where a load generator's run lies on the time line of a recording."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from spark_prof.traces.benchmarks.result import BenchmarkRun

_ZONE_NS = 900_000_000_000
"""Time zones are whole quarters of an hour from UTC."""

_ZONES = (-48, 56)
"""From UTC-12 to UTC+14, in quarters of an hour."""

_WRITTEN_WITHIN_NS = 90_000_000_000
"""A result is written this soon after its run."""


@dataclass(frozen=True)
class Placement:
    """A run's stretch of time by the recording's clock.

    Attributes:
        offset_ns: what to add to the run's times; None where nothing relates the clocks.
        begin_ns: the run begins.
        end_ns: the run ends.
        reason: why there is no offset or no common stretch, as a sentence; else empty.
    """

    offset_ns: int | None
    begin_ns: int = 0
    end_ns: int = 0
    reason: str = ""


def place(run: BenchmarkRun, facts: Mapping[str, Any], first_ns: int, last_ns: int) -> Placement:
    """Relates the clock of a run to that of a recording.

    Args:
        run: the run.
        facts: of a recorded process; `time_ns` and `monotonic_ns` are the same moment.
        first_ns: the first recorded step begins.
        last_ns: the last one ends.
    """
    if run.start_ns is None or run.duration_s is None or run.clock == "none":
        return Placement(None, reason="The result does not say when it was measured.")
    offset = _offset(run.clock, facts)
    if offset is None:
        return Placement(
            None,
            reason="The result's times count from the boot of a host, and the recording does not "
            "relate that clock to its own.",
        )
    begin = run.start_ns + offset
    end = begin + round(run.duration_s * 1e9)
    if run.clock == "monotonic" and run.local_end_ns and not _plausible(run.local_end_ns, end):
        return Placement(
            None,
            reason="The result's date contradicts its times by this host's clock: it was measured "
            "on another host or after another boot.",
        )
    if end <= first_ns or begin >= last_ns:
        apart, word = (first_ns - end, "before") if end <= first_ns else (begin - last_ns, "after")
        host = ", if both ran on one host" if run.clock == "monotonic" else ""
        return Placement(
            None, reason=f"The run lies {apart / 1e9:,.1f} s {word} the recorded steps{host}."
        )
    return Placement(offset, begin, end)


def _offset(clock: str, facts: Mapping[str, Any]) -> int | None:
    if clock == "epoch":
        return 0
    pair = facts.get("time_ns"), facts.get("monotonic_ns")
    if isinstance(pair[0], int) and isinstance(pair[1], int):
        return pair[0] - pair[1]
    return None


def _plausible(local_ns: int, end_ns: int) -> bool:
    """Whether a local wall clock could show that time when the run ended."""
    quarters = round((local_ns - end_ns) / _ZONE_NS)
    apart = abs(local_ns - end_ns - quarters * _ZONE_NS)
    return apart <= _WRITTEN_WITHIN_NS and _ZONES[0] <= quarters <= _ZONES[1]

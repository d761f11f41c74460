"""Where a run lies on a recording's time line."""

from __future__ import annotations

from dataclasses import replace

from spark_prof.analyzers.clients.engine_side import place
from spark_prof.traces.benchmarks.result import BenchmarkRun
from tests.rows import each_row

EPOCH = 1_800_000_000_000_000_001
BOOT = 1_799_999_000_000_000_007
"""When the host booted: its monotonic clock counts from there."""
FACTS = {"time_ns": EPOCH, "monotonic_ns": EPOCH - BOOT}
SECOND = 1_000_000_000
FIRST, LAST = EPOCH + 100 * SECOND, EPOCH + 110 * SECOND
RUN = BenchmarkRun("tool", start_ns=FIRST - BOOT - 5, clock="monotonic", duration_s=60.0)


def test_a_monotonic_clock_is_moved_without_losing_a_digit() -> None:
    found = place(RUN, FACTS, FIRST, LAST)
    assert (found.offset_ns, found.begin_ns) == (BOOT, FIRST - 5)
    assert found.end_ns == FIRST - 5 + 60 * SECOND


def test_an_epoch_clock_is_taken_as_it_is() -> None:
    found = place(replace(RUN, start_ns=FIRST - 5, clock="epoch"), {}, FIRST, LAST)
    assert (found.offset_ns, found.begin_ns) == (0, FIRST - 5)


@each_row(
    ("change", "facts", "word"),
    [
        ({"clock": "none"}, FACTS, "does not say when"),
        ({"start_ns": None}, FACTS, "does not say when"),
        ({"duration_s": None}, FACTS, "does not say when"),
        ({}, {}, "does not relate"),
        ({}, {"time_ns": "x", "monotonic_ns": 1.5}, "does not relate"),
        ({"duration_s": 0.0}, FACTS, "before"),
        ({"start_ns": LAST - BOOT + 1}, FACTS, "after"),
        ({"local_end_ns": FIRST + 68 * SECOND + 400 * SECOND}, FACTS, "another host"),
        ({"local_end_ns": FIRST + 60 * SECOND + 40 * 3600 * SECOND}, FACTS, "another host"),
    ],
)
def test_why_nothing_relates_them(
    change: dict[str, object], facts: dict[str, object], word: str
) -> None:
    found = place(replace(RUN, **change), facts, FIRST, LAST)  # type: ignore[arg-type]
    assert found.offset_ns is None
    assert word in found.reason


@each_row("hours", [-12.0, -3.5, 0.0, 5.75, 14.0])
def test_the_date_may_be_of_any_time_zone(hours: float) -> None:
    written = FIRST + 62 * SECOND + round(hours * 3600) * SECOND
    assert place(replace(RUN, local_end_ns=written), FACTS, FIRST, LAST).offset_ns == BOOT

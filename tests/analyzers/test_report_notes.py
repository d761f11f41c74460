"""Pauses of a recording are told, and are the time of no step and of no gap."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_prof.analyzers.overhead import overhead_of
from spark_prof.analyzers.report_notes import pauses_of
from spark_prof.dashboards.sections.time_section import overhead
from spark_prof.traces.assemble import assemble
from spark_prof.traces.bundle import Bundle
from spark_prof.traces.chunks import progress_name, write_json
from tests.analyzers.reported import reported
from tests.rows import each_row
from tests.support import (
    MODEL,
    PREPARE,
    Piece,
    Recorded,
    call,
    engine,
    kineto,
    operator,
    step,
)

MS = 1_000_000
WAIT, PERIOD, PAUSE = MS // 2, 5 * MS, 700 * MS
"""What lies between the scheduler's decision and the worker; a step; writing a piece."""


def recorded(folder: Path, sizes: list[int], pause: int = PAUSE) -> Bundle:
    """Decode steps that are all alike, in pieces of so many; each piece but the first waited."""
    pieces, scheduler, number, now = [], [], 0, 0
    for place, size in enumerate(sizes):
        steps, calls, ran = [], [], []
        for position in range(size):
            waited = pause if place and not position else 0
            begin = now + WAIT + waited
            steps.append(step(number, begin, begin + 4 * MS, paused_ns=waited))
            calls += call(PREPARE, begin, begin + MS) + call(MODEL, begin + MS, begin + 3 * MS)
            ran.append(operator("aten::mm", begin + MS, begin + 3 * MS))
            scheduler.append(engine(number, now, begin + 4 * MS + WAIT))
            now = begin + 4 * MS + WAIT
            number += 1
        pieces.append(Piece(steps, calls, kineto(*ran)))
    told = Recorded({0: pieces}, {0: scheduler})
    waits = len(sizes) - 1
    folder_of = told.write(folder / "b")
    sums = {"count": waits, "total_ns": waits * pause, "longest_ns": pause}
    write_json(folder_of, progress_name("rank0"), {"finished": True, "pauses": sums})
    return assemble(folder / "b", state="complete")


@each_row("sizes", [[40], [20, 20], [8] * 5, [1] * 40, [1, 4, 16, 19]])
def test_steps_take_as_long_however_they_are_cut_into_pieces(
    tmp_path: Path, sizes: list[int]
) -> None:
    report = reported(recorded(tmp_path, sizes))
    assert report.steps.decode_us is not None
    assert report.steps.decode_us.median == pytest.approx(PERIOD / 1e3)
    assert report.steps.decode_us.p99 == pytest.approx(PERIOD / 1e3)
    assert report.steps.decode_us.mean == pytest.approx(PERIOD / 1e3, rel=0.02)
    assert report.all_steps
    assert report.all_steps.gap_us == pytest.approx(40 * 3000, rel=0.02)
    assert report.wall_us == pytest.approx(40 * PERIOD / 1e3, rel=0.02)


def test_the_report_tells_them(tmp_path: Path) -> None:
    report = reported(recorded(tmp_path, [20, 20]))
    assert report.pauses is not None
    assert (report.pauses.count, report.pauses.us, report.pauses.longest_us) == (1, 7e5, 7e5)
    assert any("stood still once to write" in n and "up to 700 ms" in n for n in report.notes)
    section = overhead(report)
    assert section.rows[0][:3] == ("1", "700.00 ms", "700.00 ms")
    assert "stood still for the recording 1 time," in section.intro[0]


def test_short_ones_are_in_the_section_alone(tmp_path: Path) -> None:
    report = reported(recorded(tmp_path, [200, 200], 15 * MS))
    assert report.pauses is not None
    assert not any("stood still" in note for note in report.notes)
    assert overhead(report).rows


@each_row("told", [None, 3, {}, {"count": -1, "total_ns": 1, "longest_ns": 1},
                   {"count": 1, "total_ns": 1 << 70, "longest_ns": 1},
                   {"count": 0, "total_ns": 0, "longest_ns": 0},
                   {"count": True, "total_ns": 1.5, "longest_ns": "x"}])  # fmt: skip
def test_a_recording_that_does_not_tell_has_none(tmp_path: Path, told: object) -> None:
    facts = {} if told is None else {"pauses": told}
    bundle = Recorded({0: [Piece([step(0, 0, 900)])]}, facts=facts).assemble(tmp_path / "b")
    assert pauses_of(bundle, 0) is None


def test_overhead_is_that_of_steps_and_the_run_has_the_pauses(tmp_path: Path) -> None:
    """Profiled stretches of ten steps in pieces of five, between others of ten."""
    steps, now = [], 0
    for number in range(100):
        profiled = number // 10 % 2
        waited = PAUSE if number % 5 == 0 and profiled else 0
        now += waited
        counts = {"watched": profiled, "paused_ns": waited}
        steps.append(step(number, now, now + 4 * MS, **counts))
        now += PERIOD
    bundle = Recorded({0: [Piece(steps)]}).assemble(tmp_path / "b")
    [found] = overhead_of(bundle, 0)
    assert (found.ratio, found.lowest, found.highest) == pytest.approx((1, 1, 1))
    assert found.run_ratio > 2
    assert reported(bundle).overhead == (found,)

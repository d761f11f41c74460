"""Times of nsys exports against the epoch: marks, drift between them, and no marks at all."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from spark_prof.traces.chunks import CLOCK_MARK
from spark_prof.traces.readers.nsys_file import Clock, open_export, read_clock
from tests.nsys_files import BEGUN, Export
from tests.rows import each_row

SECOND = 1_000_000_000


def clock_of(export: Export, tmp_path: Path) -> Clock:
    path = export.write(tmp_path / "export.sqlite")
    with open_export(path) as opened:
        return read_clock(opened)


def epoch(clock: Clock, *times: int) -> list[int]:
    return [int(time) for time in clock.to_epoch(np.array(times, np.int64))]


def test_the_sessions_start_alone(tmp_path: Path) -> None:
    clock = clock_of(Export(), tmp_path)
    assert not clock.marked
    assert epoch(clock, 0, 123) == [BEGUN, BEGUN + 123]


@pytest.mark.parametrize("registered", [False, True])
def test_a_drift_is_followed_from_mark_to_mark(tmp_path: Path, registered: bool) -> None:
    export = Export()
    # The export's clock loses 20 us a second, then 50.
    for time, ahead in ((1 * SECOND, 0), (11 * SECOND, 200_000), (21 * SECOND, 700_000)):
        export.mark(time, f"{CLOCK_MARK}{BEGUN + time + ahead}", registered=registered)
    clock = clock_of(export, tmp_path)
    assert clock.marked
    assert epoch(clock, 1 * SECOND) == [BEGUN + SECOND]
    assert epoch(clock, 6 * SECOND) == [BEGUN + 6 * SECOND + 100_000]
    assert epoch(clock, 16 * SECOND) == [BEGUN + 16 * SECOND + 450_000]
    assert epoch(clock, 0, 99 * SECOND) == [BEGUN, BEGUN + 99 * SECOND + 700_000]


def test_of_a_burst_the_soonest_mark_counts(tmp_path: Path) -> None:
    export = Export()
    for named, late in ((100, 900), (2_000, 15), (4_000, 50_000)):
        export.mark(named + late, f"{CLOCK_MARK}{BEGUN + named}")
    assert epoch(clock_of(export, tmp_path), 0) == [BEGUN - 15]


@each_row("text", ["spark_prof clock", "spark_prof clock -5", "clock 5", "", "9" * 30])
def test_marks_of_others_are_no_clock(tmp_path: Path, text: str) -> None:
    assert not clock_of(Export().mark(5, text).mark(9, f"{CLOCK_MARK}{'9' * 30}"), tmp_path).marked

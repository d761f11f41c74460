"""The table that sets the replicas of a run side by side."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from spark_prof.analyzers.model import ReplicaRow, Report
from spark_prof.dashboards.sections.rank_section import replicas


def shown(*rows: ReplicaRow) -> list[list[str]]:
    report: Any = SimpleNamespace(replicas=rows)
    return [[str(cell) for cell in row] for row in replicas(cast(Report, report)).rows]


def test_each_has_its_share_of_the_output() -> None:
    rows = ReplicaRow(0, 0, 67, 120, 128, 2.5, 5e5), ReplicaRow(1, 2, 34, 60, 64, 1.0, 2e5)
    assert [row[0] for row in shown(*rows)] == ["0", "1"]
    assert [row[1] for row in shown(*rows)] == ["0", "2"]
    assert [row[5:] for row in shown(*rows)] == [["128", "66.7 %", "2.5"], ["64", "33.3 %", "1.0"]]


def test_one_without_a_scheduler_s_record_and_one_without_work() -> None:
    rows = ReplicaRow(0, 0, 67, 120, None, 2.5, 5e5), ReplicaRow(1, 1, 0, 0, 0, None, 0.0)
    rows += (ReplicaRow(2, 2, 5, 9, 4, 1.0, 9e3),)
    assert [row[5:] for row in shown(*rows)] == [
        ["-", "-", "2.5"], ["0", "0.0 %", "-"], ["4", "100.0 %", "1.0"],
    ]  # fmt: skip


def test_one_engine_has_no_such_table() -> None:
    assert shown() == []

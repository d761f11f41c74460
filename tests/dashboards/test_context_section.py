"""What a report says of context: the answering line, whose figures add up, and the tables."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from spark_prof.analyzers.context.context_rows import (
    ContextCost,
    ContextMark,
    ContextSpeed,
    LayerKindCost,
)
from spark_prof.analyzers.findings.waiting_requests import _slope
from spark_prof.analyzers.model import Report
from spark_prof.dashboards.outline import figures, outline
from spark_prof.dashboards.sections.context_section import line, sections

from .sample import SAMPLES

FULL = LayerKindCost(
    "full", 36, 0, 1024, 32768, 900.0, grows=True, base_us=300.0, slope_us=190.0,
    slope_low_us=180.0, slope_high_us=200.0, off=0.01, bytes_per_token=73728.0, bound_us=140.0,
    marks=(ContextMark(1024, 490.0, 150.0), ContextMark(65536, None, 9000.0)),
)  # fmt: skip
WINDOW = LayerKindCost(
    "window", 12, 128, 1024, 32768, 40.0, grows=False, base_us=40.0, slope_us=0.01,
    slope_low_us=-0.2, slope_high_us=0.2, off=0.0, bound_us=0.0,
)  # fmt: skip
SPEED = ContextSpeed(1e6 / 61, 1e6 / 44, 1.0, 4400.0, 1900.0, 6300.0, 34.0)
COST = ContextCost(1, 300, 1024, 32768, 16000.0, 4.8e12, (FULL, WINDOW), SPEED)


def report(cost: ContextCost | None = COST, **changed: Any) -> Report:
    return replace(SAMPLES["mixture_of_experts"], context=cost and replace(cost, **changed))


def sentences(one: Report) -> str:
    return " ".join(str(row[0]) for row in sections(one)[0].rows)


def test_the_line_says_what_the_loss_is() -> None:
    assert line(report()) == (
        "tokens/s of a sequence falls from 61 to 44 between 1,024 and 32,768 tokens of context at "
        "batch 1: 12 of the 17 are bytes, 5 the kernel."
    )


@pytest.mark.parametrize("lost", [1.3, 7.77, 23.4, 36.6, 39.9])
@pytest.mark.parametrize("of_bytes", [0.0, 0.13, 0.5, 0.81, 1.0])
def test_the_parts_of_a_loss_add_up(lost: float, of_bytes: float) -> None:
    before, after = 1e6 / 61, 1e6 / (61 - lost)
    grown = after - before
    speed = ContextSpeed(
        before, after, 1.0, of_bytes * grown * 0.9, (1 - of_bytes) * grown * 0.9, 0.9 * grown,
        0.1 * grown,
    )  # fmt: skip
    text = line(report(speed=speed))
    whole = re.search(r"falls from ([\d.]+) to ([\d.]+)", text)
    assert whole is not None
    parts = [float(x) for x in re.findall(r"([\d.]+)(?: of the [\d.]+ are)? (?=byt|the|out)", text)]
    assert sum(parts) == pytest.approx(float(whole[1]) - float(whole[2]), abs=0.11)


def test_what_does_not_fall_is_no_fall() -> None:
    assert "stays at 61.0" in line(report(speed=replace(SPEED, longest_us=SPEED.shortest_us)))


def test_without_a_bandwidth_nothing_is_said_of_bytes() -> None:
    speed = replace(SPEED, bytes_us=None, kernel_us=None)
    text = sentences(report(bandwidth=None, speed=speed))
    assert "17 of the 17 are attention's" in text
    assert "doctor --measure" in text


def test_a_reason_stands_for_what_is_not_told() -> None:
    one = report(kinds=(), speed=None, why_not="narrow")
    assert sentences(one).startswith("Not told: the contexts lie within 512 tokens.")
    assert [section.rows for section in sections(one)[1:]] == [(), ()]
    assert sections(report(None)) == ()
    assert line(report(None)) == ""


def test_the_tables_have_each_kind_and_dashes_for_what_was_not_recorded() -> None:
    kinds, marks = sections(report())[1:]
    assert [row[0] for row in kinds.rows] == ["full attention", "sliding window of 128"]
    assert kinds.rows[1][kinds.columns.index(_column(kinds, "Of the bound"))] == "-"
    assert marks.rows[0][:3] == ("full attention", "490.0 us", "-")
    assert "sliding window of 128: 40.0 us a step whatever the context is." in sentences(report())


def _column(section: Any, title: str) -> Any:
    return next(column for column in section.columns if column.title == title)


def test_the_report_and_its_figures_have_them() -> None:
    names = [section.id for section in outline(report()).sections]
    assert {"context", "context-kinds", "context-marks"} <= {*names}
    drawn = figures(report())["context-kinds"]
    assert [trace.name for trace in drawn.data] == [
        "full attention", "full attention, bytes", "sliding window of 128",
    ]  # fmt: skip


def test_a_slope_far_above_its_bytes_is_a_finding() -> None:
    assert list(_slope.look(report())) == []
    slow = replace(FULL, slope_us=380.0, slope_low_us=370.0, slope_high_us=390.0)
    (observation,) = _slope.look(report(kinds=(slow, WINDOW)))
    assert "take 380.00 us more" in observation.text
    assert "their bytes 140.00 us" in observation.text
    unsure = replace(slow, slope_low_us=200.0)
    assert list(_slope.look(report(kinds=(unsure,)))) == []
    assert list(_slope.look(report(kinds=(slow,), bandwidth=None))) == []
    for figure in ("slope_us", "slope_low_us", "bound_us"):
        unknown = replace(slow, **{figure: None})
        assert list(_slope.look(report(kinds=(unknown,)))) == [], figure


def test_a_window_that_grows_is_a_finding() -> None:
    grown = replace(WINDOW, slope_us=60.0, slope_low_us=50.0, slope_high_us=70.0)
    (observation,) = _slope.look(report(kinds=(grown,)))
    assert observation.subject == "window"
    assert "their bytes 0.00 us" in observation.text
    assert list(_slope.look(report(kinds=(replace(grown, slope_low_us=-1.0),)))) == []

"""Of every recording in tests/data: rows of roles add up, and the report fits one screen."""

from __future__ import annotations

import re
import shlex

import pytest

from spark_prof.analyzers.model import Report
from spark_prof.analyzers.step_time import step_weights
from spark_prof.analyzers.summary import ReportWithRows, summary_of
from spark_prof.dashboards.outline import outline
from spark_prof.dashboards.render import Layout, render_report
from spark_prof.dashboards.render.limits import bounded
from spark_prof.dashboards.section import DocumentBounds
from spark_prof.dashboards.sections import roofline_section
from spark_prof.dashboards.short_report import short_report
from spark_prof.datasets.opened import opened
from spark_prof.errors import CommandError
from spark_prof.vocabulary import BASES, COPIES
from tests.analyzers.findings.test_verify import right
from tests.analyzers.test_invariants import sources

MOST_LINES = 70
UNITS = {"us": 1.0, "ms": 1e3, "s": 1e6}


@pytest.mark.slow
def test_the_rows_add_up_to_the_decode_step_s_kernels_and_the_report_fits_one_screen() -> None:
    looked_at = with_roles = 0
    for name, path in sources(foreign=False):
        try:
            with opened(str(path)) as source:
                for rank in source.ranks:
                    found = summary_of(source, rank)
                    roofline = found.report.roofline
                    if roofline and roofline.decode and roofline.decode.kernels_us:
                        with_roles += adds_up(name, found)
                        looked_at += 1
                    fits_one_screen(name, found.report)
                    right(found.report.findings, found.report.run.model)
        except CommandError:
            assert name.startswith("shared/"), name
    assert (looked_at, with_roles) >= (20, 20)


def fits_one_screen(name: str, report: Report) -> None:
    """Fails where the short report is too long, repeats a command or names no real section."""
    for width in (80, 100):
        drawn = render_report(report, Layout("text", width))
        assert drawn.count("\n") <= MOST_LINES, (name, width)
        assert not re.search(r"(\.\.\.|…)$", drawn, re.M), (name, width)
    for words in (shlex.split(found.command) for found in report.findings):
        if "--section" in words:
            bounded(
                outline(report), DocumentBounds(sections=(words[words.index("--section") + 1],))
            )
    shown = [s for s in short_report(report).sections if s.id.startswith("findings-")]
    commands = [section.rows for section in shown if section.rows]
    assert len(shown) <= 3
    assert len(set(commands)) == len(commands), name


def adds_up(name: str, found: ReportWithRows) -> bool:
    """Whether a row has a role; fails where rows, or cells of the table, are not all there is."""
    assert found.report.roofline
    phase = found.report.roofline.decode
    assert phase
    decode = found.steps[(found.steps["phase"] == "decode").to_numpy()]
    if len(found.report.steps.batches) > 1 and (size := found.report.steps.screen_batch):
        decode = decode[decode["decode_requests"] == size]  # a screen is of one batch size
    weights = step_weights(decode["phase"], decode if found.timed else None)
    weight = dict(zip(decode.index, weights, strict=True))
    ran = found.kernels
    ran = ran[ran["step"].isin(decode.index) & ~ran["kind"].isin(COPIES)]
    us = (ran["end_ns"] - ran["start_ns"]) / 1e3 * ran["step"].map(weight)
    assert phase.kernels_us == pytest.approx(us.sum()), name
    keys = ["component", "role", "name"]
    weakest = ran.assign(us=us, basis=ran["basis"].astype(str).map(BASES.index).astype(int))
    groups = weakest.groupby(keys, observed=True).agg(us=("us", "sum"), basis=("basis", "max"))
    for row in phase.rows:
        assert row.us * row.calls == pytest.approx(groups.loc[row.place, "us"]), (name, row.place)
        assert BASES.index(row.owner_basis) == groups.loc[row.place, "basis"], (name, row.place)
        # One role for all layers.
        assert not any(part.isdigit() for part in row.role.split(".")), (name, row.role)
    section = roofline_section.kernels(found.report)
    if not phase.rows:
        # What began in an earlier step is no call of these.
        return not section.rows
    assert {len(row) for row in section.rows} == {len(section.columns)}
    cells = [str(row[1]).split() for row in section.rows]
    shown = sum(float(value.replace(",", "")) * UNITS[unit] for value, unit in cells)
    # Each cell has three digits at least.
    assert shown == pytest.approx(phase.kernels_us, rel=0.005), name
    return any(row.role for row in phase.rows)

"""The one screen that `report` prints, over every recording in tests/data."""

from __future__ import annotations

import shlex

import pytest

from spark_prof.analyzers.summary import summarize
from spark_prof.dashboards.outline import outline
from spark_prof.dashboards.render import render_report
from spark_prof.dashboards.short_report import short_report
from spark_prof.datasets.opened import opened
from spark_prof.errors import CommandError
from tests.analyzers.test_invariants import sources

MOST_LINES = 70


@pytest.mark.slow
def test_it_fits_one_screen_and_repeats_no_command() -> None:
    looked_at = 0
    for name, path in sources():
        try:
            with opened(str(path)) as source:
                report = summarize(source)
        except CommandError:
            continue
        looked_at += 1
        for width in (80, 100):
            assert render_report(report, "text", width).count("\n") <= MOST_LINES, (name, width)
        for command in (found.command for found in report.findings):
            words = shlex.split(command)
            if "--section" in words:
                outline(report, only=[words[words.index("--section") + 1]])
        shown = [s for s in short_report(report).sections if s.id.startswith("findings-")]
        commands = [section.rows for section in shown if section.rows]
        assert len(shown) <= 3
        assert len(set(commands)) == len(commands), name
    assert looked_at >= 20

"""The report in a terminal: complete snapshots, and what no snapshot shows."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from rich.cells import cell_len

from spark_prof.dashboards.render import render_report
from tests.rows import each_row

from .sample import SAMPLES


@pytest.mark.parametrize("sample", SAMPLES)
def test_snapshot(sample: str, snapshot: Callable[[str, str], None]) -> None:
    snapshot(f"{sample}.txt", render_report(SAMPLES[sample], "text"))


def test_snapshot_on_a_narrow_terminal(snapshot: Callable[[str, str], None]) -> None:
    snapshot("deep_80.txt", render_report(SAMPLES["deep"], "text", width=80))


@each_row("width", [60, 80, 100, 200])
@each_row("sample", SAMPLES)
def test_no_line_is_wider_than_the_terminal(sample: str, width: int) -> None:
    lines = render_report(SAMPLES[sample], "text", width=width).splitlines()
    assert max(map(cell_len, lines)) <= width


@each_row("width", [80, 100, 200])
@each_row("sample", sorted(n for n in SAMPLES if "hostile" not in n))
def test_no_figure_is_cut_off(sample: str, width: int) -> None:
    assert "…" not in render_report(SAMPLES[sample], "text", width=width)


def test_has_colour_only_when_asked() -> None:
    report = SAMPLES["mixture_of_experts"]
    assert "\x1b[" not in render_report(report, "text")
    assert "\x1b[" in render_report(report, "text", color=True)


def test_a_name_brings_no_escape_sequence_into_a_coloured_report() -> None:
    rendered = render_report(SAMPLES["hostile"], "text", color=True)
    assert "\x1b[31mred" not in rendered
    assert "\x1b]" not in rendered
    assert "\x9b" not in rendered

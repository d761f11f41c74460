"""A run of the benchmark in lines of text."""

from __future__ import annotations

from benchmarks.kernel_targets import BARS, bar_lines, bar_tables, failure_lines, judge_bars
from spark_prof.kernels.bench.results import OURS, cell_line

from .made import CEILINGS, MARLIN, cell, ours


def test_a_line_tells_times_shares_and_ratios() -> None:
    line = cell_line(cell(ours(12.5, marlin=25.0)), CEILINGS)
    # 30 MB at 3 TB/s take 10 us, and a launch one more.
    assert "12.50 us [11.25, 13.75]" in line
    assert "80% of read" in line
    assert "floor  11.00 x 1.14" in line
    assert "vLLM Marlin 25.00 us = 2.00 x" in line
    failed = cell({OURS: None, MARLIN: 3.0})
    assert f"{OURS}: failed" in cell_line(failed, CEILINGS)
    assert list(failure_lines([failed, failed])) == [
        "spark-prof has no time for 2 of dense: wrong result"
    ]
    assert list(bar_lines([])) == []


def test_each_bar_is_told_with_what_it_is_about() -> None:
    cells = [cell(ours(5.0), megabytes=7), cell(ours(7.0), megabytes=5)]
    (small,) = [bar for bar in BARS if bar.statistic == "largest us"]
    heading, worst, better = [
        line for line in bar_tables(judge_bars(cells, CEILINGS, [small]), CEILINGS) if line
    ]
    assert heading.startswith("NOT REACHED   under 8 MB")
    assert "7 over 2 pieces of work; worst 7, dense nvfp4 4096 x" in heading
    assert "7.00 us" in worst
    assert "5.00 us" in better
    assert "dispatcher" not in heading
    (missing,) = bar_lines(judge_bars([], CEILINGS, [small]))
    assert missing.startswith("not measured")


def test_where_others_are_faster_the_dispatcher_takes_them() -> None:
    cells = [cell(ours(5.0, marlin=4.0)), cell(ours(5.0, marlin=20.0))]
    (bar,) = [bar for bar in BARS if bar.kind == "dense" and bar.statistic == "smallest ratio"]
    (line,) = bar_lines(judge_bars(cells, CEILINGS, [bar]))
    assert line.startswith("NOT REACHED")
    assert line.endswith("; the dispatcher leaves 1 to the other kernel")

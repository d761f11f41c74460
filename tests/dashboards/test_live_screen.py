"""The screen of a recording that goes on: its rows for the figures that there are."""

from __future__ import annotations

import re
from dataclasses import replace

from rich.cells import cell_len

from spark_prof.dashboards.live_screen import ROWS, live_lines
from spark_prof.profiler.live_figures import LiveFigures, LiveKernel

FIGURES = LiveFigures(
    rank=0, steps=64, profiled=False, step_ns=8.12e6, batch=4.0, tokens_per_s=492.6, drafts=False,
    kernels=tuple(LiveKernel(f"void ns::kernel_{n}<float>(int)", 1e5 * n, n / 15)
                  for n in range(5, 0, -1)),
    kernel_steps=16, profiled_over_timed=1.03,
)  # fmt: skip


def shown(figures: LiveFigures | None, width: int = 99, state: str = "recording step 58") -> str:
    lines = live_lines(state, figures, width, color=False)
    assert len(lines) == ROWS
    assert all(cell_len(line) <= width for line in lines)
    assert not any("\x1b" in line for line in lines)
    return "\n".join(lines)


def test_what_is_known_is_shown() -> None:
    text = shown(FIGURES)
    for part in ("recording step 58", "8.12 ms a token", "492.6 tokens/s", "batch 4",
                 "last 64 decode steps, not profiled", "1.03 x", "16 profiled steps"):  # fmt: skip
        assert part in text
    names = re.findall(r"ns::kernel_(\d)", text)
    assert names == ["5", "4", "3", "2", "1"]
    assert "500.0 us" in text
    assert "33.3 %" in text


def test_what_is_not_known_is_not_made_up() -> None:
    nothing = shown(None)
    assert "No decode steps" in nothing
    assert "tokens/s" not in nothing
    none_yet = shown(replace(FIGURES, steps=0, step_ns=0.0, tokens_per_s=0.0, kernels=()))
    assert "tokens/s" not in none_yet
    assert "not known yet" in shown(replace(FIGURES, profiled_over_timed=None))
    drafts = shown(replace(FIGURES, drafts=True))
    assert "8.12 ms a step" in drafts
    assert "tokens/s" not in drafts
    assert "batch 3.5" in shown(replace(FIGURES, batch=3.5))


def test_names_and_states_cannot_write_to_the_terminal() -> None:
    hostile = LiveKernel("evil\x1b[2J\x07" + "漢字" * 90, 1e5, 1.0)
    for width in (60, 79, 200):
        text = shown(replace(FIGURES, kernels=(hostile,)), width, state="recording\x1b[31m\r\nx")
        assert "evil" in text
        assert "\r" not in text


def test_colours_end_where_they_begin() -> None:
    for line in live_lines("recording", FIGURES, 99):
        assert line.count("\x1b[") in (0, 2)
        assert "\x1b[" not in line or line.endswith("\x1b[0m")

"""Ctrl-C in a real terminal, twice in quick succession, while a real server has requests."""

from __future__ import annotations

from pathlib import Path

from benchmarks.ctrl_c import moment


def test_ctrl_c_in_a_terminal_keeps_every_step(models: dict[str, Path], tmp_path: Path) -> None:
    whole, line = moment(tmp_path, models["tiny-dense"], 40, 2, idle=False)
    assert whole, line

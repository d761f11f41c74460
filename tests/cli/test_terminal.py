"""Colours: on a terminal alone, and there as its user wants it."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from tests.rows import each_row

RUN = [sys.executable, "-m", "spark_prof.cli.main", "kernels", "list"]


def _on_terminal(words: list[str], environment: dict[str, str]) -> str:
    """What a command writes to a terminal of its own."""
    own, others = pty.openpty()
    inherited = {name: value for name, value in os.environ.items() if name != "NO_COLOR"}
    with subprocess.Popen(words, stdout=others, env=inherited | environment) as process:
        os.close(others)
        written = b""
        while piece := _read(own):
            written += piece
    os.close(own)
    assert process.returncode == 0
    return written.decode()


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 1 << 16)
    except OSError:
        # Linux reports the end of a terminal's output as an error.
        return b""


@pytest.mark.slow
@each_row(
    ("environment", "coloured"),
    [
        ({"TERM": "xterm-256color"}, True),
        ({"TERM": "xterm-256color", "NO_COLOR": ""}, True),
        ({"TERM": "xterm-256color", "NO_COLOR": "1"}, False),
        ({"TERM": "dumb"}, False),
    ],
)
def test_a_terminal(environment: dict[str, str], coloured: bool) -> None:
    assert ("\x1b[" in _on_terminal(RUN, environment)) == coloured


@pytest.mark.slow
def test_a_file_and_a_pipe_have_no_colours(tmp_path: Path) -> None:
    path = tmp_path / "list.txt"
    assert "\x1b" not in _on_terminal([*RUN, "-o", str(path)], {"TERM": "xterm-256color"})
    assert "\x1b" not in path.read_text(encoding="utf-8")
    forced = os.environ | {"FORCE_COLOR": "1", "CLICOLOR_FORCE": "1", "TERM": "xterm-256color"}
    piped = subprocess.run(RUN, capture_output=True, text=True, check=True, env=forced)
    assert "\x1b" not in piped.stdout

"""Lines at the bottom of a real terminal, beside what others write to it."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import termios
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from spark_prof.profiler.terminal import BottomLines


@dataclass
class Terminal:
    """A terminal: what a program sees of it, and what a person sees."""

    program: int
    person: int

    def resize(self, lines: int, columns: int) -> None:
        fcntl.ioctl(self.program, termios.TIOCSWINSZ, struct.pack("4H", lines, columns, 0, 0))

    def written(self) -> str:
        """What has been written since it was last asked."""
        text = b""
        while select.select([self.person], [], [], 0)[0]:
            text += os.read(self.person, 1 << 16)
        return text.decode()


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[Terminal]:
    person, program = pty.openpty()
    monkeypatch.setattr(os, "tcgetpgrp", lambda _: os.getpgrp())  # it is no terminal of this test's
    made = Terminal(program, person)
    made.resize(30, 100)
    yield made
    os.close(person)
    os.close(program)


def test_rows_are_taken_drawn_and_given_back(terminal: Terminal) -> None:
    lines = BottomLines(terminal.program, 3)
    assert lines.columns == 99
    lines.show(["one", "two"])
    drawn = terminal.written()
    assert "\x1b[1;27r" in drawn  # rows 28 to 30 do not scroll
    assert re.findall(r"\x1b\[(\d+);1H\x1b\[2K([a-z]*)", drawn) == [
        ("28", "one"), ("29", "two"), ("30", ""),
    ]  # fmt: skip
    assert drawn.startswith("\r\n\r\n\r\n\x1b[3A")  # the terminal adds what returns the cursor
    assert drawn.index("\x1b7") < drawn.index("\x1b[1;27r")
    assert drawn.endswith("\x1b8")
    lines.show(["three"])
    again = terminal.written()
    assert "\n" not in again
    assert "three" in again
    lines.close()
    closed = terminal.written()
    assert "\x1b[r" in closed
    assert len(re.findall(r"\x1b\[\d+;1H\x1b\[2K", closed)) == 3
    lines.close()
    assert terminal.written() == ""


def test_another_size_takes_other_rows(terminal: Terminal) -> None:
    lines = BottomLines(terminal.program, 3)
    lines.show(["one"])
    terminal.resize(40, 120)
    assert lines.columns == 119
    terminal.written()
    lines.show(["one"])
    drawn = terminal.written()
    assert "\x1b[r" in drawn
    assert "\x1b[1;37r" in drawn


def test_nothing_is_drawn_where_it_would_disturb(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = BottomLines(terminal.program, 3)
    lines.show(["one"])
    terminal.written()
    mode = termios.tcgetattr(terminal.program)
    mode[3] &= ~termios.ECHO
    termios.tcsetattr(terminal.program, termios.TCSANOW, mode)
    assert lines.columns == 0  # somebody types a password
    assert terminal.written() == ""
    mode[3] |= termios.ECHO
    termios.tcsetattr(terminal.program, termios.TCSANOW, mode)
    assert lines.columns == 99
    monkeypatch.setattr(os, "tcgetpgrp", lambda _: 1)  # another program has it
    assert lines.columns == 0
    assert "\x1b[r" in terminal.written()
    monkeypatch.setattr(os, "tcgetpgrp", lambda _: os.getpgrp())
    for lines_there, columns in ((10, 100), (30, 40), (0, 0)):
        terminal.resize(lines_there, columns)
        assert lines.columns == 0


def test_no_terminal_is_no_fault() -> None:
    read, write = os.pipe()
    try:
        lines = BottomLines(write, 3)
        assert lines.columns == 0
        lines.close()
    finally:
        os.close(read)
        os.close(write)

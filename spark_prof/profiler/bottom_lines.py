"""Lines at the bottom of a terminal, above which all else that is written scrolls as usual.

The terminal is told to scroll without its last rows (DECSTBM, as apt's progress bar does): what the
engine writes, it writes as before, and it stays readable. Each picture is one write, from saving
the cursor to putting it back, so that nothing of the engine comes between. Where another program
has the terminal, in the background, or while somebody types a password, nothing is drawn.
"""

from __future__ import annotations

import os
import termios
from collections.abc import Sequence
from contextlib import suppress

_SAVE, _RESTORE = "\x1b7\x1b[0m", "\x1b8"
_USUAL = termios.ICANON | termios.ECHO
_LEAST_ROWS_LEFT, _LEAST_COLUMNS = 8, 60


class BottomLines:
    """So many rows of the terminal behind a file descriptor.

    lines = BottomLines(sys.stderr.fileno(), 2)
    lines.show(["recording", "step 5"])
    lines.close()
    """

    def __init__(self, terminal: int, rows: int) -> None:
        self._terminal = terminal
        self._rows = rows
        self._size: os.terminal_size | None = None  # of the terminal whose bottom is taken

    @property
    def columns(self) -> int:
        """The length of a line; 0 where nothing can be shown now."""
        try:
            size = os.get_terminal_size(self._terminal)
            free = os.tcgetpgrp(self._terminal) == os.getpgrp()
            mode = termios.tcgetattr(self._terminal)[3]
        except (OSError, termios.error):
            return 0
        if not free or size.lines < self._rows + _LEAST_ROWS_LEFT or size.columns < _LEAST_COLUMNS:
            self.close()
            return 0
        # The last column is left alone: some terminals begin a new row behind it.
        return size.columns - 1 if mode & _USUAL == _USUAL else 0

    def show(self, lines: Sequence[str]) -> None:
        """Draws the lines, no longer than `columns`, over those that are there."""
        size = os.get_terminal_size(self._terminal)
        if size != self._size:
            self.close()
        first = size.lines - self._rows + 1
        begin = ""
        if self._size is None:  # what stands at the bottom moves up
            begin = "\n" * self._rows + f"\x1b[{self._rows}A"
        rows = [*lines, *[""] * self._rows][: self._rows]
        drawn = "".join(f"\x1b[{first + at};1H\x1b[2K{line}" for at, line in enumerate(rows))
        self._size = size
        # To set the rows that scroll moves the cursor: it is saved before.
        self._write(f"{begin}{_SAVE}\x1b[1;{first - 1}r{drawn}\x1b[0m{_RESTORE}")

    def close(self) -> None:
        """Gives the rows back, empty; the cursor stays where it is."""
        if self._size is None:
            return
        first = self._size.lines - self._rows + 1
        self._size = None
        cleared = "".join(f"\x1b[{first + at};1H\x1b[2K" for at in range(self._rows))
        with suppress(OSError):  # the terminal may be gone
            self._write(f"{_SAVE}\x1b[r{cleared}{_RESTORE}")

    def _write(self, text: str) -> None:
        os.write(self._terminal, text.encode("utf-8", "replace"))

"""The screen of `spark-prof record`: figures at the bottom of the terminal while it records."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from spark_prof.profiler.bottom_lines import BottomLines

if TYPE_CHECKING:
    from spark_prof.profiler.live_figures import LiveReader

_SECONDS = 0.5  # between two pictures of the same state


class LiveScreen:
    """Figures of the pieces in a folder, drawn over the last rows of stderr's terminal.

    A fault in it ends the screen, never the recording.
    """

    def __init__(self, pieces: Path) -> None:
        self._pieces = pieces
        self._lines: BottomLines | None = None
        self._reader: LiveReader | None = None
        self._drawn_at = 0.0
        self._state = ""
        self._ended = False

    def show(self, state: str) -> bool:
        """Draws the figures of now; False where nothing can be drawn."""
        if self._ended:
            return False
        try:
            return self._show(state)
        except Exception:
            self.close()
            return False

    def _show(self, state: str) -> bool:
        # What these import takes half a second, for which nothing is recorded yet.
        from spark_prof.dashboards.live_screen import ROWS, live_lines
        from spark_prof.profiler.live_figures import LiveReader

        self._lines = self._lines or BottomLines(sys.stderr.fileno(), ROWS)
        self._reader = self._reader or LiveReader(self._pieces)
        width = self._lines.columns
        if not width:
            return False
        now = time.monotonic()
        if state != self._state or now - self._drawn_at >= _SECONDS:
            color = not os.environ.get("NO_COLOR")
            self._lines.show(live_lines(state, self._reader.figures, width, color=color))
            self._state, self._drawn_at = state, now
        return True

    def clear(self) -> None:
        """Gives the rows back, until something is drawn again."""
        if self._lines:
            self._lines.close()
        self._drawn_at = 0.0

    def close(self) -> None:
        """Gives the rows back for good."""
        self._ended = True
        if self._reader:
            self._reader.close()
        self.clear()


def live_screen(pieces: Path) -> LiveScreen | None:
    """The screen of a recording; None where a person would not see it."""
    dumb = os.environ.get("TERM", "dumb") in ("", "dumb")
    visible = sys.stdout.isatty() and sys.stderr.isatty() and not dumb
    return LiveScreen(pieces) if visible else None


@contextmanager
def closing_screen(screen: LiveScreen | None) -> Iterator[None]:
    """Ends the screen, however what it shows has ended."""
    try:
        yield
    finally:
        if screen:
            screen.close()

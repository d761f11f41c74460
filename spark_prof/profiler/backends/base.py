"""What a backend does for a recording."""

from __future__ import annotations

from typing import Protocol

__all__ = ["Backend"]


class Backend(Protocol):
    """Watches what runs, a piece at a time; all calls come from the thread of the steps."""

    def start(self, piece: int) -> None:
        """Begins to watch, for the piece of that number."""

    def stop(self) -> None:
        """Stops to watch and writes what was seen since `start`."""

    def discard(self) -> None:
        """Stops to watch if it still does, and forgets what was seen."""

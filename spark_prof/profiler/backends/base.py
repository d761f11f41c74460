"""What a backend does for a recording."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

__all__ = ["Backend"]


class Backend(Protocol):
    """Watches what runs, a piece at a time; start and stop come from the thread of the steps."""

    def start(self) -> None:
        """Begins to watch."""

    def stop(self, folder: Path, process: str, piece: int) -> None:
        """Stops to watch and writes what was seen as that piece."""

    def discard(self) -> None:
        """Stops to watch if it still does, and forgets what was seen."""

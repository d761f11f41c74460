"""What a backend does for a recording."""

from __future__ import annotations

from typing import Protocol, runtime_checkable


class Backend(Protocol):
    """Watches what runs, a piece at a time; all calls come from the thread of the steps."""

    def start(self, piece: int) -> None:
        """Begins to watch, for the piece of that number."""

    def stop(self) -> None:
        """Stops to watch and writes what was seen since `start`."""

    def discard(self) -> None:
        """Stops to watch if it still does, and forgets what was seen."""


@runtime_checkable
class ArgumentReader(Protocol):
    """A backend that can read the arguments of kernels launched outside of graphs."""

    def read_launches(self, *, on: bool) -> None:
        """Reads them from now on, or not; each start and stop of the backend ends it.

        It costs some 10 us a launch, so it is for few steps.
        """

"""The tracks of one process of a trace: their numbers, names and order."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

_FIRST_FREE = 2_000_000_000
"""Above the thread ids that Linux gives; viewers take no number above 32 bits."""


@dataclass
class Tracks:
    """Gives out the thread ids of one process.

    Attributes:
        process: its process id in the trace.
        name: what the viewer calls the process.
    """

    process: int
    name: str
    _names: dict[int, str] = field(default_factory=dict)

    def add(self, name: str, wanted: int | None = None) -> int:
        """A new track below those that are there; it gets the id that is wanted if that is free.

        Readers take a stream's number and a thread's id from here. Perfetto takes a 0 for the
        kernel's idle thread.
        """
        number = wanted
        if number is None or not 0 < number < _FIRST_FREE or number in self._names:
            number = _FIRST_FREE + len(self._names)
        self._names[number] = name
        return number

    def events(self) -> list[str]:
        """The metadata events that name the process and its tracks, as JSON."""
        found = [self._event("process_name", None, {"name": self.name})]
        for order, (number, name) in enumerate(self._names.items()):
            found.append(self._event("thread_name", number, {"name": name}))
            found.append(self._event("thread_sort_index", number, {"sort_index": order}))
        return found

    def _event(self, kind: str, track: int | None, values: dict[str, str | int]) -> str:
        event = {"ph": "M", "name": kind, "pid": self.process, "ts": 0, "args": values}
        return json.dumps(event if track is None else event | {"tid": track})

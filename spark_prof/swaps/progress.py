"""What an engine is doing with which kernel, as a line of its log: the last tells where it died."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

_MARK = " | spark-prof: "


@dataclass(frozen=True)
class Progress:
    """A line of an engine's log that names what it does with which kernel."""

    doing: str  # building or trying
    kernel: str  # SLOT=NAME; empty when all are in their layers, and whatever follows is no one's

    def __str__(self) -> str:
        text = f"{self.doing} {self.kernel}" if self.doing else "all swaps are in their layers"
        return f"{text}{_MARK}{json.dumps(asdict(self))}"


ALL_LIVE = Progress("", "")


def last_progress(log: str) -> Progress:
    """The last progress line of a log; `ALL_LIVE` where it has none.

    last_progress(f"INFO {Progress('trying', 'o=fp8')}").kernel == "o=fp8"
    """
    for line in reversed(log.splitlines()):
        _, mark, record = line.partition(_MARK)
        if mark:
            try:
                return Progress(**json.loads(record))
            except (TypeError, ValueError):  # cut short, or not written by this package
                continue
    return ALL_LIVE

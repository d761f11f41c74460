"""What a page is, and what it gets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from spark_prof.datasets.prepared import Prepared


@dataclass(frozen=True)
class Sources:
    """What was opened."""

    shown: Prepared
    # A recording, by its place on the command line; CommandError where it cannot be read.
    read: Callable[[int], Prepared]
    labels: tuple[str, ...] = ()  # a short name of each recording; not to be drawn unescaped
    place: int = 0
    clients: tuple[Path, ...] = ()  # results of load generators that were named beside them

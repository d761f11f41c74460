"""What a page is, and what it gets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from spark_prof.datasets.prepared import Prepared


@dataclass(frozen=True)
class Sources:
    """What was opened."""

    shown: Prepared
    # Every recording, in the order of the command line. Each is read when it is first looked at,
    # which raises CommandError where it cannot be; its length is known without that.
    all: Sequence[Prepared]
    labels: tuple[str, ...] = ()  # a short name of each of `all`; not to be drawn unescaped
    place: int = 0
    clients: tuple[Path, ...] = ()  # results of load generators that were named beside them

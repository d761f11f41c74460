"""What the writers of a trace's tracks share: one rank that is being written."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa

from spark_prof.exporters.event_text import events, microseconds
from spark_prof.exporters.selection import Selection
from spark_prof.exporters.tracks import Tracks
from spark_prof.traces.bundle import ROWS, Bundle

Int64s = npt.NDArray[np.int64]


@dataclass(frozen=True)
class RankTrace:
    """One rank of a bundle and the trace that it is written to.

    Attributes:
        kernels: those that are exported, as `analyzers.labels.label_kernels` returns them.
        origin: what every time is relative to, in ns.
        tracks: the tracks of its process.
    """

    bundle: Bundle
    rank: int
    kernels: pd.DataFrame
    selection: Selection
    origin: int
    tracks: Tracks
    out: BinaryIO

    def write(self, *parts: str | pa.Array) -> None:
        """Writes one event a row: the parts of its JSON object, without what closes it."""
        self.out.write(events(*parts, f',"pid":{self.tracks.process}}},\n'))

    def since_origin(self, times: Int64s) -> pa.Array:
        """Times in us after the origin, as text."""
        return microseconds(times - self.origin)


def slices(rows: int) -> Iterator[slice]:
    """Stretches of at most `ROWS` rows, whose text memory can hold."""
    return (slice(first, first + ROWS) for first in range(0, rows, ROWS))

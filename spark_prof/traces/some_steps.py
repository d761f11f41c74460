"""A few whole steps, spread over a long recording, as a bundle of their own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pandas as pd

from spark_prof.traces.bundle import Bundle, table_file
from spark_prof.traces.tables import TABLES, empty_table

__all__ = ["Share", "SomeSteps"]


@dataclass(frozen=True)
class Share:
    """How much of a rank's recording was looked at: so many of so many steps and kernels."""

    steps: int
    of_steps: int
    kernels: int
    of_kernels: int


class SomeSteps(Bundle):
    """Steps of one rank that lie whole in row groups spread evenly over its kernels.

    Steps that follow each other in one row group are a piece; counters are left out. The other
    tables are those of the whole bundle.

    Args:
        whole: an opened bundle.
        rank: one of its ranks, the only one here.
        rows: of the kernels, about.

    Attributes:
        share: what is here; no steps where none is whole.

    Raises:
        CommandError: a table is damaged.
    """

    def __init__(self, whole: Bundle, rank: int, rows: int) -> None:
        self.path = whole.path
        kernels, place = whole.spread("kernels", rank, TABLES["kernels"].schema.names, rows)
        steps = whole.frame("steps", rank)
        piece = steps["step"].map(_whole_steps(kernels["step"].to_numpy(), place))
        kept = piece.notna()
        steps_here = steps[kept].assign(piece=piece[kept].astype(steps["piece"].dtype))
        kernels_here = kernels[kernels["step"].isin(steps_here["step"])].reset_index(drop=True)
        self._here = {
            "steps": steps_here,
            "kernels": kernels_here,
            "counters": empty_table("counters").to_pandas(),
        }
        own = {name: rows for name, rows in whole.meta.tables.items() if _belongs(name, rank)}
        found = {table_file(table, rank): len(frame) for table, frame in self._here.items()}
        self.meta = replace(whole.meta, tables=own | found)
        of_kernels = own.get(table_file("kernels", rank), 0)
        self.share = Share(len(steps_here), len(steps), len(kernels_here), of_kernels)

    def frame(self, table: str, rank: int, columns: Sequence[str] | None = None) -> pd.DataFrame:
        """One table of a rank; kernels and steps are those that are here."""
        found = self._here.get(table) if rank in self.ranks else None
        if found is None:
            return super().frame(table, rank, columns)
        chosen: pd.DataFrame = found if columns is None else found[list(columns)]
        return chosen

    def spread(
        self, table: str, rank: int, columns: Sequence[str], rows: int
    ) -> tuple[pd.DataFrame, npt.NDArray[np.int64]]:
        """All of a table: what is here was spread already."""
        there = self.meta.tables.get(table_file(table, rank), 0)
        return super().spread(table, rank, columns, max(rows, there))


def _whole_steps(step: npt.NDArray[np.int64], place: npt.NDArray[np.int64]) -> dict[int, int]:
    """The steps that have all their kernels here, with the number of the stretch they are in.

    Args:
        step: of each kernel that is here.
        place: its row in the whole table.
    """
    found: dict[int, int] = {}
    between = np.flatnonzero(np.diff(place) > 1) + 1
    for number, stretch in enumerate(np.split(step, between)):
        # The first and the last one may go on outside.
        inner = np.unique(stretch[stretch >= 0])[1:-1]
        found |= dict.fromkeys(inner.tolist(), number)
    return found


def _belongs(name: str, rank: int) -> bool:
    """Whether a table file is of that rank, or what a scheduler said, which is of all."""
    table, _, number = name.removesuffix(".parquet").rpartition("-rank")
    return table == "engine" or number == str(rank)

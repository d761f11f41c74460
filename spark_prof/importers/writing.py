"""Writes tables while the next window is being read."""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType

import pandas as pd

from spark_prof.traces.table_files import TableFiles

__all__ = ["BehindTables"]

_MOST_WAITING = 8
"""So many frames wait at most: reading is held up before memory grows."""


class BehindTables:
    """Table files to which a thread of their own adds the frames, in the order in which they came.

    A context, inside that of the files; at its end everything is written.

    Args:
        tables: the files.
    """

    def __init__(self, tables: TableFiles) -> None:
        self._tables = tables
        self._thread = ThreadPoolExecutor(max_workers=1)
        self._waiting: deque[Future[None]] = deque()

    def __enter__(self) -> BehindTables:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None
    ) -> None:
        self._thread.shutdown(wait=True, cancel_futures=kind is not None)
        if kind is None:
            self._wait(0)

    def add(self, table: str, rank: int, frame: pd.DataFrame) -> None:
        """Appends a frame, which must not change any more; see `TableFiles.add`.

        Raises:
            OSError: one of the frames before it could not be written.
        """
        self._wait(_MOST_WAITING)
        self._waiting.append(self._thread.submit(self._tables.add, table, rank, frame))

    def rows(self) -> dict[str, int]:
        """How many rows each file has by now."""
        self._wait(0)
        return self._tables.rows

    def _wait(self, most: int) -> None:
        while len(self._waiting) > most:
            self._waiting.popleft().result()

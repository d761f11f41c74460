"""Recordings that were read, and those that are being read: each once, off the page's thread."""

from __future__ import annotations

import gc
import threading
import time
from collections import OrderedDict
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field

from spark_prof.datasets import prepared_content as _read_by_threads  # noqa: F401
from spark_prof.datasets.prepared import Prepared, fingerprint, prepare
from spark_prof.errors import CommandError

__all__ = ["SHELF", "Reading", "Shelf"]

_MOST = 6
"""Recordings that are kept; the one that was looked at longest ago goes first."""


@dataclass
class Reading:
    """One reading of a rank of a source.

    Attributes:
        state: the source's fingerprint before it began.
        began: when, seconds since the epoch.
        first: what can be shown first: of a long recording what some of its steps say, else
            `prepared`.
        prepared: what comes of it, or its CommandError.
        whole: set once its kernels are there too, or cannot be.
        newer: the reading that takes its place when it is done.
    """

    state: str
    began: float = field(default_factory=time.time)
    first: Future[Prepared] = field(default_factory=Future)
    prepared: Future[Prepared] = field(default_factory=Future)
    whole: threading.Event = field(default_factory=threading.Event)
    newer: Reading | None = None

    def look(self, part: Prepared) -> None:
        """Says what some of the steps say."""
        if not self.first.done():
            self.first.set_result(part)

    def end(self, prepared: Prepared | Exception) -> None:
        """Says what came of it."""
        for future in (self.prepared, self.first):
            if future.done():
                continue
            if isinstance(prepared, Exception):
                future.set_exception(prepared)
            else:
                future.set_result(prepared)

    @property
    def failed(self) -> bool:
        """Whether it has ended in an error."""
        return self.prepared.done() and self.prepared.exception() is not None


class Shelf:
    """Every source is read once, and again when it has changed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._readings: OrderedDict[tuple[str, int | None], Reading] = OrderedDict()

    def ask(self, source: str, rank: int | None = None) -> Reading:
        """The reading of a source, which begins now unless it already has.

        Args:
            source: a path or URL.
            rank: the rank, the lowest one if None.
        """
        with self._lock:
            key = self._key(source, rank)
            if key not in self._readings:
                self._readings[key] = _begin(source, rank)
            self._readings.move_to_end(key)
            while len(self._readings) > _MOST:
                self._readings.popitem(last=False)
            return self._readings[key]

    def renew(self, source: str, rank: int | None = None) -> bool:
        """Looks whether a source has changed, and reads it again in the background if so.

        Returns:
            Whether `ask` gives another reading from now on.
        """
        state = fingerprint(source)
        with self._lock:
            key = self._key(source, rank)
            old = self._readings.get(key)
            if old is None:
                return False
            if old.newer is None:
                if old.prepared.done() and state != old.state:
                    old.newer = _begin(source, rank)
                return False
            if not old.newer.prepared.done():
                return False
            # A recording that goes on may be met between two pieces: what was read stays.
            if old.newer.failed and not old.failed:
                old.newer = None
                return False
            self._readings[key] = old.newer
            return True

    def _key(self, source: str, rank: int | None) -> tuple[str, int | None]:
        lowest = self._readings.get((source, None))
        if lowest and lowest.first.done() and not lowest.failed:
            rank = None if lowest.first.result().rank == rank else rank
        return source, rank


def _begin(source: str, rank: int | None) -> Reading:
    reading = Reading(fingerprint(source))
    # A daemon: whoever ends the server does not wait for what is being read.
    threading.Thread(target=_read, args=(reading, source, rank), daemon=True).start()
    return reading


def _read(reading: Reading, source: str, rank: int | None) -> None:
    try:
        prepared = prepare(source, rank, reading.look)
        reading.end(prepared)
        with suppress(CommandError):
            prepared.rest()
    except CommandError as error:
        reading.end(error)
    except Exception as error:
        # A thread's error would else be seen by nobody, and the page would wait for ever.
        fault = f"{source}: a fault of spark-prof's own, {type(error).__name__}: {error}"
        reading.end(CommandError(fault))
    finally:
        reading.whole.set()
    _keep()


def _keep() -> None:
    """Keeps what is there from being looked through for garbage: a reading is a million objects.

    What has become garbage since the last time goes first.
    """
    gc.unfreeze()
    gc.collect()
    gc.freeze()
    gc.collect()  # Python waits for a quarter more objects than it has found the last time


SHELF = Shelf()
"""The one of this process, for all who look."""

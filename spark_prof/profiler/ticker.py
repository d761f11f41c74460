"""A thread of the recorder that py-spy samples with the rest, and whose function tells the time.

py-spy's file counts from a start that nobody knows, and leaves out each sample that shows the same
stack as the one before. A thread that is in another function every half millisecond, and that keeps
when it entered each, puts an interval of the recorder's own clock beside every sample.
"""

from __future__ import annotations

import threading
import time
from types import FunctionType
from typing import NamedTuple

import numpy as np

from spark_prof.arrays import Int64s
from spark_prof.traces.readers.py_spy import TICK_FUNCTION, TICKS

_TICK_SECONDS = 0.0005


class TickLog(NamedTuple):
    """When the ticker entered its functions, in ns; row n is of function n modulo `TICKS`."""

    thread: int  # as Python and py-spy number it
    entered_ns: Int64s  # ascending


class Ticker:
    """Ticks from `start` to `stop`, in a thread that does nothing else."""

    def __init__(self) -> None:
        self._entered: list[int] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="spark-prof ticker", daemon=True)

    def start(self) -> None:
        """Begins to tick."""
        self._thread.start()

    def stop(self) -> TickLog:
        """Ends it, and returns what it kept."""
        self._over.set()
        self._thread.join()
        return TickLog(self._thread.ident or 0, np.array(self._entered, np.int64))

    def _run(self) -> None:
        functions = [_renamed(number) for number in range(TICKS)]
        while not self._over.is_set():
            for function in functions:
                function(self._entered)
                if self._over.is_set():
                    break


def _tick(entered: list[int]) -> None:
    entered.append(time.time_ns())
    time.sleep(_TICK_SECONDS)


def _renamed(number: int) -> FunctionType:
    """A function that does what `_tick` does, under another name."""
    name = TICK_FUNCTION.format(number)
    return FunctionType(_tick.__code__.replace(co_name=name, co_qualname=name), globals(), name)

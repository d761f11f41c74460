"""Runs cases on every core."""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from tests.fuzz.cases import MOST_SECONDS, Case, Outcome, limit_memory, run

Run = Callable[[Iterable[Case]], Iterator[Outcome]]

_ADDRESS_SPACE = 4 << 30
"""Bytes that a worker may have beyond what it starts with; most of them are never touched."""


@contextmanager
def workers(folder: Path) -> Iterator[Run]:
    """Gives a function that says what becomes of cases, in their order; the folder stays empty.

    A worker that ends, or hangs where no signal reaches Python, breaks the pool: that is an error
    of its own, `BrokenProcessPool`.
    """
    context = multiprocessing.get_context("forkserver")
    cores = len(os.sched_getaffinity(0))
    with ProcessPoolExecutor(cores, context, _begin, (folder,)) as pool:
        yield lambda cases: pool.map(_run, cases, chunksize=2)


def _begin(folder: Path) -> None:
    global _folder
    _folder = folder
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    limit_memory(_ADDRESS_SPACE)


_folder = Path()


def _run(case: Case) -> Outcome:
    # A case that hangs is told by itself; this is for one that hangs outside of Python.
    faulthandler.dump_traceback_later(2 * MOST_SECONDS, exit=True)
    try:
        return run(case, _folder)
    finally:
        faulthandler.cancel_dump_traceback_later()

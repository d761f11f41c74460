"""Runs cases on every core."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.fuzz.cases import Case, Outcome, limit_memory, run

__all__ = ["Run", "workers"]

Run = Callable[[Iterable[Case]], Iterator[Outcome]]

_ADDRESS_SPACE = 4 << 30
"""Bytes that a worker may have beyond what it starts with; most of them are never touched."""


@contextmanager
def workers(folder: Path) -> Iterator[Run]:
    """Gives a function that says what becomes of cases, in any order; the folder stays empty."""
    context = multiprocessing.get_context("forkserver")
    with context.Pool(len(os.sched_getaffinity(0)), _begin, (folder,)) as pool:
        yield lambda cases: pool.imap_unordered(_run, cases, chunksize=2)


def _begin(folder: Path) -> None:
    global _folder
    _folder = folder
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    limit_memory(_ADDRESS_SPACE)


_folder = Path()


def _run(case: Case) -> Outcome:
    return run(case, _folder)

"""What the explorer shows of one rank of a source, made once and then only read.

A process of its own reads the source: it writes the report as soon as it has it, then the columns,
and ends. This one maps what was written. Both are kept, so that a second start reads nothing again.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from spark_prof.datasets.prepared_name import past_of, prepared_name
from spark_prof.datasets.preparing import (
    begin_in,
    failure_in,
    first_page_in,
    opening_in,
    rest_in,
)
from spark_prof.errors import CommandError
from spark_prof.traces.prepared_folders import cache_folder, own_folder
from spark_prof.traces.source_state import META_FILE, source_state

if TYPE_CHECKING:
    import pandas as pd

    from spark_prof.analyzers.model import Report
    from spark_prof.analyzers.views.columns import KernelColumns
    from spark_prof.datasets.prepared_content import Opening, Rest
    from spark_prof.traces.some_steps import Share

__all__ = ["Prepared", "begin", "fingerprint", "first_page", "prepare"]


@dataclass(frozen=True)
class Prepared:
    """One rank of a source.

    The report is there at once; kernels, steps and layers may be waited for when they are first
    asked for, and raise a CommandError where they cannot be read.

    Attributes:
        source: as the user named it.
        rank: that is shown.
        ranks: that there are.
        report: the whole report.
        live: whether the source was still being recorded.
        timed: whether anything tells when the kernels ran; where nothing does, as in a table of
            sums, they lie end to end, and steps have no times.
        share: what the report was made of; None for all of it.
    """

    source: str
    rank: int
    ranks: tuple[int, ...]
    report: Report
    rest: Callable[[], Rest] = field(repr=False, compare=False)
    live: bool = False
    timed: bool = True
    share: Share | None = None

    @property
    def kernels(self) -> KernelColumns:
        """The kernels of that rank."""
        return self.rest().kernels

    @property
    def steps(self) -> pd.DataFrame:
        """The rows of `step_books` in order: step, phase, begin_ns, step_us, gap_us ..."""
        return self.rest().steps

    @property
    def layers(self) -> pd.DataFrame:
        """The live model's modules, the table `layers`."""
        return self.rest().layers


def fingerprint(source: str) -> str:
    """A text that changes when a source does, within milliseconds; always empty for a URL.

    That of a recording that goes on changes with every piece that was flushed.
    """
    return source_state(source) or ""


def begin(source: str, rank: int | None = None) -> None:
    """Has a bundle prepared, and does not wait for it: who prepares it later finds it begun.

    Args:
        source: a bundle; with anything else, or where nothing can be kept, nothing happens.
        rank: the rank, the lowest one if None.
    """
    with suppress(OSError, RuntimeError, ValueError):
        if (Path(source) / META_FILE).is_file() and (name := prepared_name(source, rank)):
            begin_in(cache_folder() / name, source, rank)


def first_page(source: str, rank: int | None = None) -> Callable[[], tuple[str | None, bool]]:
    """What looks whether a source that is being prepared has said something, and never waits.

    Args:
        source: a bundle, or a trace that is a file.
        rank: the rank, the lowest one if None.

    Returns:
        A function that gives what the source says first, as HTML, and whether it is being read.
    """
    with suppress(OSError, RuntimeError, ValueError):
        if name := prepared_name(source, rank):
            return partial(first_page_in, cache_folder() / name)
    return lambda: (None, False)


def prepare(
    source: str,
    rank: int | None = None,
    first_look: Callable[[Prepared], None] = lambda _: None,
) -> Prepared:
    """Reads a source and everything that pages show of it, or finds it prepared.

    Args:
        source: a bundle, the folder of a recording that goes on, a trace, or the URL of one.
        rank: the rank, the lowest one if None.
        first_look: is told what some of a long recording's steps say, before all are read. Whoever
            asks that for its kernels waits for them all.

    Raises:
        CommandError: the source is none of these, or damaged.
    """
    rest: Future[Rest] = Future()

    def look(part: Opening) -> None:
        first_look(_prepared(source, part, rest))

    try:
        folder, content, opening = _opened(source, rank, look)
    except CommandError as error:
        rest.set_exception(error)
        raise
    _fulfil(rest, partial(rest_in, folder, source, rank, content))
    return _prepared(source, opening, rest)


def _opened(
    source: str, rank: int | None, look: Callable[[Opening], None]
) -> tuple[Path, bytes, Opening]:
    """The folder in which a source is prepared, and what that begins with."""
    name = prepared_name(source, rank)
    reason = ""
    for folder in _folders(name or f"{past_of(source, rank)}{os.urandom(8).hex()}", name is None):
        found = opening_in(folder, source, rank, look)
        if found is not None:
            return folder, *found
        reason = failure_in(folder)
    raise CommandError(f"{source} could not be read: {reason}")


def _prepared(source: str, opening: Opening, rest: Future[Rest]) -> Prepared:
    return Prepared(
        source=source,
        rank=opening.rank,
        ranks=opening.ranks,
        report=opening.report,
        rest=rest.result,
        live=opening.live,
        timed=opening.timed,
        share=opening.share,
    )


def _folders(name: str, once: bool) -> Iterator[Path]:
    """Where a prepared source may lie; what is needed once is not kept."""
    if not once:
        with suppress(OSError, RuntimeError):
            yield cache_folder() / name
    yield own_folder() / name


def _fulfil(promised: Future[Rest], load: Callable[[], Rest]) -> None:
    """Loads at once in a thread of its own, which no end of the process waits for."""

    def run() -> None:
        try:
            promised.set_result(load())
        except BaseException as error:
            promised.set_exception(error)

    threading.Thread(target=run, daemon=True).start()

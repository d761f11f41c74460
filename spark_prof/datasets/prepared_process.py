"""The process that reads a source for the explorer, and takes its memory with it when it ends.

usage: python -m spark_prof.datasets.prepared_process SOURCE RANK FOLDER

RANK is - for the lowest one. FOLDER is empty, and the process that started this one has handed over
its lock. The report is there first, as `OPENING_FILE`, and what it says first as HTML, as
`FIRST_PAGE_FILE`; of a long recording those of a part of its steps come before, the report as
`FIRST_LOOK_FILE`. Or else `REFUSED_FILE` says why there is none, or
`FAILED_FILE` why the folder could not be filled.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from spark_prof.ending import TerminatedError, ended_by_signals

if TYPE_CHECKING:
    import pandas as pd

    from spark_prof.analyzers.summary import Summary
    from spark_prof.datasets.prepared_content import Opening
    from spark_prof.traces.bundle import Bundle
    from spark_prof.traces.prepared_files import FilesWriter

__all__ = [
    "FAILED_FILE",
    "FIRST_LOOK_FILE",
    "FIRST_PAGE_FILE",
    "OPENING_FILE",
    "REFUSED_FILE",
    "main",
]

FIRST_PAGE_FILE, FIRST_LOOK_FILE, OPENING_FILE = "first-page", "first-look", "opening"
REFUSED_FILE, FAILED_FILE = "refused", "failed"

_SNAPSHOT = "snapshot"
_LESS_URGENT = 10
"""What is being recorded comes before whoever looks at it."""

_AFTER_A_LOOK = 5
"""The first page comes before the rest, which is not to stand still meanwhile."""

_LONG = 600_000
"""Kernels from which on a first look at some of them is there well before all are read."""

_LOOKED_AT = 160_000
"""Kernels of a first look: reading more would take longer than the imports do."""

_NEED_TIMES = ("step_us", "union_us", "overlap_us", "gap_us", "residual_us", "engine_us")
"""Columns of `step_books` that say nothing where nothing tells when kernels ran."""


def main() -> int:
    """Prepares a source; returns the exit code."""
    source, rank, folder = sys.argv[1], sys.argv[2], Path(sys.argv[3])
    try:
        with ended_by_signals():
            _prepare(source, None if rank == "-" else int(rank), folder)
    except KeyboardInterrupt:
        return 130
    except TerminatedError:
        return 143
    except (OSError, MemoryError) as error:
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        _say(folder, FAILED_FILE, reason)
        return 1
    return 0


def _prepare(source: str, rank: int | None, folder: Path) -> None:
    from spark_prof.errors import CommandError

    try:
        with _opened(source, folder) as (bundle, live):
            _write(source, bundle, rank, live, folder)
    except CommandError as error:
        # Nobody has ever heard of the snapshot's folder.
        _say(folder, REFUSED_FILE, str(error).replace(str(folder / _SNAPSHOT), source))
    except UnicodeEncodeError:
        _say(folder, REFUSED_FILE, f"{source} cannot be read: its name is no UTF-8; rename it")
    except (OSError, MemoryError):
        raise
    except Exception as error:
        fault = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        _say(folder, REFUSED_FILE, f"{source} cannot be read, by a fault of spark-prof: {fault}")
        raise


@contextmanager
def _opened(source: str, folder: Path) -> Iterator[tuple[Bundle, bool]]:
    """The source as a bundle, and whether it is still being recorded."""
    from spark_prof.datasets.opened import opened
    from spark_prof.traces.remote import is_url
    from spark_prof.traces.snapshot import is_recording, snapshot

    if not is_url(source) and is_recording(Path(source)):
        os.nice(_LESS_URGENT)
        (folder / _SNAPSHOT).mkdir()
        try:
            yield snapshot(Path(source), folder / _SNAPSHOT), True
        finally:
            shutil.rmtree(folder / _SNAPSHOT, ignore_errors=True)
        return
    with opened(source) as bundle:
        yield bundle, False


def _write(source: str, bundle: Bundle, rank: int | None, live: bool, folder: Path) -> None:
    from spark_prof.analyzers.placement import kernels_in_order
    from spark_prof.analyzers.views.column_making import SHAPE_COLUMNS, columns_of
    from spark_prof.datasets.prepared_content import Rest, write_rest
    from spark_prof.traces.prepared_files import FilesWriter
    from spark_prof.traces.prepared_folders import make_room

    writer = FilesWriter(folder)
    if not live and (first := _first_look(bundle, rank)) is not None:
        _open(writer, first, FIRST_LOOK_FILE)
        os.nice(_AFTER_A_LOOK)
    opening, summary = _opening(bundle, rank)
    if live:
        run = replace(opening.report.run, source=source)
        opening = replace(opening, live=True, report=replace(opening.report, run=run))
    _open(writer, opening, OPENING_FILE)
    shapes = kernels_in_order(bundle, opening.rank, ["start_ns", *SHAPE_COLUMNS])
    kernels = columns_of(summary.kernels, summary.steps.index.to_numpy(), shapes)
    rest = Rest(kernels, _books(summary), bundle.frame("layers", opening.rank))
    write_rest(writer, rest)
    make_room(folder)


def _open(writer: FilesWriter, opening: Opening, name: str) -> None:
    from spark_prof.dashboards.first_page import first_page
    from spark_prof.datasets.prepared_content import encode_opening

    page = first_page(opening.report, opening.share)
    writer.small(FIRST_PAGE_FILE, page.encode("utf-8", "replace"))
    writer.small(name, encode_opening(opening))


def _opening(bundle: Bundle, rank: int | None) -> tuple[Opening, Summary]:
    """What the first page needs, and what its report sums up."""
    from spark_prof.analyzers.clients.summary import with_clients
    from spark_prof.analyzers.summary import summary_of
    from spark_prof.datasets.ceilings import ceilings_for
    from spark_prof.datasets.prepared_content import Opening

    summary = summary_of(bundle, rank, measured=ceilings_for(bundle, rank))
    shown = bundle.ranks[0] if rank is None else rank
    report = with_clients(summary.report, bundle, shown)
    return Opening(shown, tuple(bundle.ranks), False, summary.timed, report), summary


def _first_look(bundle: Bundle, rank: int | None) -> Opening | None:
    """The same from some of a long recording's steps; None where that is no use."""
    from spark_prof.traces.bundle import table_file
    from spark_prof.traces.some_steps import SomeSteps

    shown = bundle.ranks[0] if rank is None and bundle.ranks else rank
    if shown is None or bundle.meta.tables.get(table_file("kernels", shown), 0) < _LONG:
        return None
    # What is wrong with the recording is said when all of it is read.
    with suppress(Exception):
        some = SomeSteps(bundle, shown, _LOOKED_AT)
        if some.share.steps:
            opening, _ = _opening(some, shown)
            return replace(opening, ranks=tuple(bundle.ranks), share=some.share)
    return None


def _books(summary: Summary) -> pd.DataFrame:
    """The rows of `step_books`; without times NaN where they would need them."""
    from spark_prof.analyzers.ledger import step_books

    steps = summary.steps
    if not summary.timed:
        steps = step_books(steps, summary.kernels).assign(
            **dict.fromkeys(_NEED_TIMES, float("nan"))
        )
    return steps.reset_index(drop=True)


def _say(folder: Path, name: str, text: str) -> None:
    from spark_prof.traces.prepared_files import FilesWriter

    with suppress(OSError):
        FilesWriter(folder).small(name, text.encode("utf-8", "replace"))


if __name__ == "__main__":
    sys.exit(main())

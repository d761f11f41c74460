"""What is done beside the server: sources are checked, the first one is read, pages are warmed."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from spark_prof.errors import CommandError
from spark_prof.explorer.contents import PAGES
from spark_prof.explorer.entries import Entry, find_entries
from spark_prof.explorer.loading import DRAWN
from spark_prof.explorer.page import Page
from spark_prof.explorer.shelf import SHELF

__all__ = ["begin", "warm"]

_SMALL = 32 << 20
"""Bytes of a source that is read about as fast as the server starts."""

_CHECKED = 4
"""So many small sources are read to find one that can be shown."""


def begin(names: Sequence[str], ranks: Sequence[int]) -> Callable[[], None]:
    """Looks at the sources and begins to read the first one.

    Args:
        names: the sources.
        ranks: that can be chosen, all if empty.

    Returns:
        What waits until one of them can be shown, and raises CommandError if none can. Large ones
        are not waited for: their page says what is wrong with them.

    Raises:
        CommandError: none of them is what can be read.
    """
    entries = find_entries(names)
    good = [entry for entry in entries if not entry.fault]
    if not good:
        raise CommandError(entries[0].fault)
    recorded = [entry for entry in good if entry.result is None]
    if not recorded:
        return lambda: None
    rank = ranks[0] if ranks else None
    SHELF.ask(recorded[0].source, rank)
    waited_for = len(recorded) == len(good) <= _CHECKED and all(map(_is_small, recorded))

    def wait() -> None:
        faults = []
        for entry in recorded if waited_for else ():
            try:
                SHELF.ask(entry.source, rank).prepared.result()
            except CommandError as error:
                faults.append(error)
            else:
                return
        if faults:
            raise faults[0]

    return wait


def warm(names: Sequence[str], ranks: Sequence[int]) -> None:
    """Has the other pages ready for the first recording, once somebody has seen the first page.

    Args:
        names: the sources.
        ranks: that can be chosen, all if empty.
    """
    DRAWN.wait()
    # What is wrong is said by the page, to whoever goes there.
    with suppress(Exception):
        pages = [listed.load() for listed in PAGES]
        first = next(e for e in find_entries(names) if not e.fault and e.result is None)
        prepared = SHELF.ask(first.source, ranks[0] if ranks else None).prepared.result()
        for page in pages:
            if isinstance(page, Page) and page.warm is not None:
                page.warm(prepared)


def _is_small(entry: Entry) -> bool:
    path = Path(entry.source)
    try:
        files = [path] if path.is_file() else [*path.rglob("*")]
        return path.exists() and sum(os.path.getsize(file) for file in files) < _SMALL
    except OSError:
        return False

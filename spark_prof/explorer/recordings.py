"""The recordings of the list, each read when a page first looks at it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import overload

from streamlit.delta_generator import DeltaGenerator

from spark_prof.datasets.prepared import Prepared
from spark_prof.errors import CommandError
from spark_prof.explorer import cache, frame, state
from spark_prof.explorer.entries import Entry
from spark_prof.explorer.page import Sources


class Recordings(Sequence[Prepared]):
    """Several recordings; reading one raises CommandError where it cannot be read.

    Args:
        entries: of the recordings.
        place: of one that was read.
        shown: that one.
    """

    def __init__(self, entries: Sequence[Entry], place: int, shown: Prepared) -> None:
        self._entries = entries
        self._place = place
        self._shown = shown

    def __len__(self) -> int:
        return len(self._entries)

    @overload
    def __getitem__(self, place: int) -> Prepared: ...
    @overload
    def __getitem__(self, place: slice) -> list[Prepared]: ...
    def __getitem__(self, place: int | slice) -> Prepared | list[Prepared]:
        if isinstance(place, slice):
            return [self[n] for n in range(len(self))[place]]
        if range(len(self))[place] == self._place:
            return self._shown
        return _read(self._entries[place], None)


def open_shown(
    entries: Sequence[Entry],
    place: int,
    ranks: Sequence[int],
    below: DeltaGenerator,
) -> Sources:
    """Reads the shown recording and lets the user choose its rank.

    Args:
        entries: everything that can be shown.
        place: of what is shown, a recording.
        ranks: that can be chosen, all if empty.
        below: where their list is drawn.

    Raises:
        CommandError: it cannot be read.
    """
    entry = entries[place]
    default = ranks[0] if ranks else None
    try:
        shown = _first(entry, default)
    except CommandError:
        if not entry.fault:
            with below:
                frame.watch(cache.reading(entry.source, default))
        raise
    allowed = [rank for rank in shown.ranks if rank in ranks] or list(shown.ranks)
    with below:
        rank = frame.choose_rank(allowed)
        if shown.live:
            frame.watch(cache.reading(entry.source, rank))
    if rank != shown.rank:
        shown = _read(entry, rank)
    recorded = [entry for entry in entries if entry.result is None]
    own = recorded.index(entry)
    labels = tuple(entry.label for entry in recorded)
    return Sources(shown, Recordings(recorded, own, shown), labels, own)


def _first(entry: Entry, default: int | None) -> Prepared:
    """The rank that the address names, or the default one where it names none that there is."""
    named = state.chosen("rank")
    if named.isdecimal() and len(named) < 7:
        try:
            return _read(entry, int(named))
        except CommandError:
            state.keep(rank=None)
    return _read(entry, default)


def _read(entry: Entry, rank: int | None) -> Prepared:
    if entry.fault:
        raise CommandError(entry.fault)
    return cache.read(entry.source, rank, entry.label)

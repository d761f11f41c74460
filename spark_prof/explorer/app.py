"""Runs for every view: opens what the address names, draws the page that it names."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from spark_prof.dashboards.sections import run_section
from spark_prof.datasets.prepared import Prepared
from spark_prof.errors import CommandError
from spark_prof.explorer import cache, state, widgets
from spark_prof.explorer.cache import RankReading
from spark_prof.explorer.entries import SourceEntry, find_entries
from spark_prof.explorer.state import Sources

_AGAIN = 2.0  # seconds between looks at a source that is still being recorded
_DRAWN = 1.5  # seconds in which a browser draws a page


_HERE = Path(__file__).parent
_STYLE = _HERE / "app.css"
_PLACES = f"<script>{(_HERE / 'places.js').read_text('utf-8')}</script>"


def _choose_source(entries: Sequence[SourceEntry]) -> int:
    """Draws the list of sources; the place of the chosen one."""
    if len(entries) == 1:
        widgets.lines(entries[0].label)
        return 0
    labels = [entry.label for entry in entries]
    return widgets.choice("Source", labels, "source", forget=state.OF_A_SOURCE)


def _choose_rank(ranks: Sequence[int]) -> int:
    """Draws the list of ranks where there are several; the chosen one."""
    if len(ranks) == 1:
        return ranks[0]
    names = [str(rank) for rank in ranks]
    chosen = widgets.choice("Rank", names, "rank", values=names, forget=state.OF_A_RANK)
    return ranks[chosen]


def _page_links(places: Mapping[str, DeltaGenerator], pages: Mapping[str, Any]) -> None:
    """Draws the pages to go to, each in its place; a link keeps what was chosen."""
    for path, page in pages.items():
        places[path].page_link(page, query_params=state.shared())


def _empty(prepared: Prepared, recordings: int) -> frozenset[str]:
    """The pages on which nothing could be shown."""
    empty = {"ranks": len(prepared.ranks) < 2, "compare": recordings < 2}
    empty |= dict.fromkeys(("timeline", "steps"), not prepared.timed)
    empty["host"] = prepared.report.host is None
    return frozenset(path for path, is_empty in empty.items() if is_empty)


def _watch(reading: RankReading) -> None:
    """Draws the page again when its source has changed; says since when it shows what it shows."""
    st.fragment(_look, run_every=_AGAIN)(reading, reading.began)


def _look(reading: RankReading, drawn: float) -> None:
    line = "Read at {}; it is read again when it changes."
    with suppress(CommandError):
        if reading.get().live:
            line = "Being recorded. Read at {}."
    if reading.began != drawn:
        st.rerun()
    st.text(line.format(time.strftime("%H:%M:%S", time.localtime(reading.began))))


def _open_shown(
    entries: Sequence[SourceEntry],
    place: int,
    ranks: Sequence[int],
    below: DeltaGenerator,
) -> Sources:
    """Reads the shown recording and lets the user choose its rank, in a list drawn below."""
    entry = entries[place]
    default = ranks[0] if ranks else None
    try:
        prepared = _first(entry, default)
    except CommandError:
        if not entry.fault:
            with below:
                _watch(cache.reading(entry.source, default))
        raise
    allowed = [rank for rank in prepared.ranks if rank in ranks] or list(prepared.ranks)
    with below:
        rank = _choose_rank(allowed)
        if prepared.live:
            _watch(cache.reading(entry.source, rank))
    if rank != prepared.rank:
        prepared = _read(entry, rank)
    recorded = [entry for entry in entries if entry.result is None]
    index = recorded.index(entry)
    labels = tuple(entry.label for entry in recorded)

    def read(number: int) -> Prepared:
        return prepared if number == index else _read(recorded[number], None)

    return Sources(prepared, read, labels, index)


def _first(entry: SourceEntry, default: int | None) -> Prepared:
    """The rank that the address names, or the default one where it names none that there is."""
    named = state.chosen("rank")
    if named.isdecimal() and len(named) < 7:
        try:
            return _read(entry, int(named))
        except CommandError:
            state.keep(rank=None)
    return _read(entry, default)


def _read(entry: SourceEntry, rank: int | None) -> Prepared:
    if entry.fault:
        raise CommandError(entry.fault)
    return cache.read(entry.source, rank, entry.label)


def _make_columns(prepared: Prepared) -> None:
    # bar: clicks at 10 M kernels at most 3 times as long as an empty application's
    with suppress(CommandError):
        prepared.columns()


PAGES = {
    "overview": "Overview", "layers": "Layers", "timeline": "Timeline", "kernels": "Kernels",
    "conversions": "Conversions", "fallbacks": "Fallbacks", "ranks": "Ranks", "steps": "Steps",
    "host": "Host", "compare": "Compare", "ab": "A/B",
}  # fmt: skip
"""Path and title of each page, in the order of the navigation; `pages.PATH_page.show` draws it."""

_OF_RESULT = "ab"
"""The page of a result of `spark-prof ab`, shown in place of the others for such a source."""

_FIRST = "first"


def main(names: Sequence[str], ranks: Sequence[int] = ()) -> None:
    """Draws the page that the address names."""
    st.set_page_config(page_title="spark-prof", layout="wide")
    st.html(_STYLE)
    st.html(_PLACES, unsafe_allow_javascript=True)
    try:
        entries, clients = find_entries(*names)
        if not entries:
            raise CommandError("nothing to look at; give spark-prof explore a bundle or a trace")
    except CommandError as error:
        widgets.lines(f"spark-prof: {error}")
        return
    with st.sidebar:
        place = _choose_source(entries)
        below = st.container()
        links = {path: st.empty() for path in PAGES}
    view = _View(entries, place, tuple(ranks), below, clients)
    # Streamlit keeps no path for the first page, which a link may name all the same.
    first, *rest = (
        st.Page(partial(view.draw, path), title=PAGES[path], url_path=address)
        for path, address in [("overview", _FIRST), *zip(PAGES, PAGES, strict=True)]
    )
    current = st.navigation([first, *rest], position="hidden")
    of_results = entries[place].result is not None
    fitting = {
        path: page
        for path, page in zip(PAGES, [first, *rest[1:]], strict=True)
        if (path == _OF_RESULT) == of_results
    }
    if current not in fitting.values():  # it may be the first one under its own name
        st.switch_page(next(iter(fitting.values())), query_params=state.shared())
    query = state.shared()
    _page_links(links, fitting)
    current.run()
    if state.shared() != query:  # what was chosen since
        _page_links(links, fitting)
    for path in view.without.intersection(fitting):  # what was found out since
        links[path].empty()


@dataclass
class _View:
    """What is looked at, on whichever page."""

    entries: Sequence[SourceEntry]
    place: int
    ranks: Sequence[int]  # that can be chosen, all if empty
    below: DeltaGenerator
    clients: tuple[Path, ...] = ()
    without: frozenset[str] = frozenset()  # pages with nothing to show, once that is known

    def draw(self, path: str) -> None:
        """Draws a page; what cannot be read is one line on it."""
        st.header(widgets.plain(PAGES[path]), anchor=False)
        # Only the page that is looked at is imported: the first one is there earlier.
        show = import_module(f"spark_prof.explorer.pages.{path}_page").show
        result = self.entries[self.place].result
        try:
            if path == _OF_RESULT:
                if result is not None:
                    show(result)
                return
            about = st.empty()
            sources = _open_shown(self.entries, self.place, self.ranks, self.below)
            report = sources.prepared.report
            about.caption(widgets.plain(f"{report.run.model}, {run_section.in_a_line(report)}"))
            self.without = _empty(sources.prepared, len(sources.labels))
            show(replace(sources, clients=self.clients))
            # What other pages need of every kernel is made while this one is looked at, once the
            # browser has drawn it.
            if not sources.prepared.columns.ready:
                making = threading.Timer(_DRAWN, _make_columns, (sources.prepared,))
                making.daemon = True
                making.start()
        except CommandError as error:
            widgets.lines(str(error))

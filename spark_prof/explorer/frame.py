"""What stands around every page: the choice of source and rank, the pages, whether it is live."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import wait as wait_for
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import streamlit as st

from spark_prof.dashboards.colors import TEXT
from spark_prof.dashboards.first_page import first_look
from spark_prof.dashboards.formats import clean
from spark_prof.datasets.prepared import Prepared
from spark_prof.explorer import state, widgets
from spark_prof.explorer.entries import Entry
from spark_prof.explorer.shelf import SHELF, Reading

if TYPE_CHECKING:
    from spark_prof.datasets.prepared_content import Rest
    from spark_prof.traces.some_steps import Share

__all__ = ["choose_rank", "choose_source", "follow", "ink", "links", "wait", "watch"]

_AGAIN = 2.0
"""Seconds between looks at a source that is still being recorded."""

_SOON = 0.5
"""Seconds between looks whether the rest of a long recording was read."""

_GLANCE = 0.25
"""Seconds between looks at a reading; a click elsewhere is noticed that often."""


_RED, _GREEN, _BLUE = bytes.fromhex(TEXT[1:])
_INK = (
    f"<style>.js-plotly-plot text[style*='rgb({_RED}, {_GREEN}, {_BLUE})']"
    "{fill: currentColor !important}</style>"
)
"""A figure's text is a grey that can be read on any ground; here the theme's ink is known."""


def ink() -> None:
    """Draws the text of figures in the theme's ink."""
    st.html(_INK)


def choose_source(entries: Sequence[Entry]) -> int:
    """Draws the list of sources; the place of the chosen one."""
    if len(entries) == 1:
        widgets.lines([entries[0].label])
        return 0
    labels = [entry.label for entry in entries]
    return widgets.choice("Source", labels, "source", forget=state.OF_A_SOURCE)


def choose_rank(ranks: Sequence[int]) -> int:
    """Draws the list of ranks where there are several; the chosen one."""
    if len(ranks) == 1:
        return ranks[0]
    names = [str(rank) for rank in ranks]
    chosen = widgets.choice("Rank", names, "rank", values=names, forget=state.OF_A_RANK)
    return ranks[chosen]


def links(pages: Sequence[Any]) -> None:
    """Draws the pages to go to; each link keeps what was chosen."""
    for page in pages:
        st.page_link(page, query_params=state.shared())


def wait(reading: Reading, label: str, *, early: bool = False) -> Prepared:
    """Waits for a reading and says so where that takes a moment.

    Its kernels may take longer; whoever asks for them before they are there is told, too.

    Args:
        reading: what is waited for.
        label: its name.
        early: takes what some steps of a long recording say, until all are read.

    Raises:
        CommandError: it cannot be read.
    """
    note = None
    wanted = reading.first if early else reading.prepared
    try:
        while not wanted.done():
            wait_for([wanted], _GLANCE)
            if not wanted.done():
                note = note or st.empty()
                note.text(f"Reading {clean(label)}: {time.time() - reading.began:.0f} s")
    finally:
        if note is not None:
            note.empty()
    found = (reading.prepared if reading.prepared.done() else wanted).result()
    if reading.whole.is_set():
        return found

    def rest() -> Rest:
        with st.spinner("Reading its kernels", show_time=True):
            return found.rest()

    return replace(found, rest=rest)


def watch(source: str, rank: int | None) -> None:
    """Draws the page again when its source has changed; says since when it shows what it shows."""
    st.fragment(_look, run_every=_AGAIN)(source, rank)


def follow(source: str, rank: int | None, share: Share) -> None:
    """Says that a page stands on some of the steps, and draws it again when all are read."""
    st.fragment(_follow, run_every=_SOON)(source, rank, share)


def _follow(source: str, rank: int | None, share: Share) -> None:
    if SHELF.ask(source, rank).prepared.done():
        st.rerun()
    st.text(first_look(share))


def _look(source: str, rank: int | None) -> None:
    if SHELF.renew(source, rank):
        st.rerun()
    reading = SHELF.ask(source, rank)
    at = time.strftime("%H:%M:%S", time.localtime(reading.began))
    if reading.failed:
        st.text(f"Read at {at}; it is read again when it changes.")
    else:
        more = "; what has come since is being read" if reading.newer else ""
        st.text(f"Being recorded. Read at {at}{more}.")

"""What stands around every page: the choice of source and rank, the pages, whether it is live."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import streamlit as st

from spark_prof.dashboards.colors import TEXT
from spark_prof.errors import CommandError
from spark_prof.explorer import state, widgets
from spark_prof.explorer.cache import Reading
from spark_prof.explorer.entries import Entry

_AGAIN = 2.0
"""Seconds between looks at a source that is still being recorded."""


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


def watch(reading: Reading) -> None:
    """Draws the page again when its source has changed; says since when it shows what it shows."""
    st.fragment(_look, run_every=_AGAIN)(reading, reading.began)


def _look(reading: Reading, drawn: float) -> None:
    line = "Read at {}; it is read again when it changes."
    with suppress(CommandError):
        if reading.get().live:
            line = "Being recorded. Read at {}."
    if reading.began != drawn:
        st.rerun()
    st.text(line.format(time.strftime("%H:%M:%S", time.localtime(reading.began))))

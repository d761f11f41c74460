"""Runs for every view: opens what the address names, draws the page that it names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from spark_prof.errors import CommandError
from spark_prof.explorer import frame, state, widgets
from spark_prof.explorer.entries import Entry, client_results, find_entries
from spark_prof.explorer.page import Page, ResultPage
from spark_prof.explorer.pages import (
    ab,
    compare,
    conversions,
    fallbacks,
    kernels,
    layers,
    overview,
    ranks,
    steps,
    timeline,
)
from spark_prof.explorer.recordings import open_shown

PAGES: tuple[Page | ResultPage, ...] = (
    overview.PAGE, layers.PAGE, timeline.PAGE, kernels.PAGE, conversions.PAGE, fallbacks.PAGE,
    ranks.PAGE, steps.PAGE, compare.PAGE, ab.PAGE,
)  # fmt: skip
"""In the order of the navigation."""

_FIRST = "first"


def main(names: Sequence[str], ranks: Sequence[int] = ()) -> None:
    """Draws the page that the address names.

    Args:
        names: the sources, as on the command line.
        ranks: those that can be chosen, all if empty.
    """
    st.set_page_config(page_title="spark-prof", layout="wide")
    frame.ink()
    try:
        entries = _entries(tuple(names))
        if not entries:
            raise CommandError("nothing to look at; give spark-prof explore a bundle or a trace")
    except CommandError as error:
        widgets.lines([f"spark-prof: {error}"])
        return
    with st.sidebar:
        place = frame.choose_source(entries)
        below, links = st.container(), st.empty()
    view = _View(entries, place, tuple(ranks), below, client_results(names))
    # Streamlit keeps no path for the first page, which a link may name all the same.
    first, *others = (
        st.Page(partial(view.draw, page), title=page.title, url_path=path)
        for page, path in [(PAGES[0], _FIRST), *((page, page.path) for page in PAGES)]
    )
    current = st.navigation([first, *others], position="hidden")
    pages = [first, *others[1:]]
    of_results = entries[place].result is not None
    fitting = [
        page
        for page, known in zip(pages, PAGES, strict=True)
        if isinstance(known, ResultPage) == of_results
    ]
    if current not in fitting:  # it may be the first one under its own name
        st.switch_page(fitting[0], query_params=state.shared())
    told = state.shared()
    with links.container():
        frame.links(fitting)
    current.run()
    if state.shared() != told:  # what the page has chosen since is kept by its links too
        with links.container():
            frame.links(fitting)


@lru_cache(maxsize=4)
def _entries(names: tuple[str, ...]) -> tuple[Entry, ...]:
    return find_entries(names)


@dataclass(frozen=True)
class _View:
    """What is looked at, on whichever page.

    Attributes:
        entries: everything that can be shown.
        place: of what is shown.
        ranks: that can be chosen, all if empty.
        below: the place for the choice of a rank.
        clients: results of load generators.
    """

    entries: Sequence[Entry]
    place: int
    ranks: Sequence[int]
    below: DeltaGenerator
    clients: tuple[Path, ...] = ()

    def draw(self, page: Page | ResultPage) -> None:
        """Draws a page; what cannot be read is one line on it."""
        st.header(widgets.plain(page.title), anchor=False)
        result = self.entries[self.place].result
        try:
            if isinstance(page, Page):
                sources = open_shown(self.entries, self.place, self.ranks, self.below)
                page.show(replace(sources, clients=self.clients))
            elif result is not None:
                page.show(result)
        except CommandError as error:
            widgets.lines([str(error)])

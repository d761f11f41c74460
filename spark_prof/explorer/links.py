"""Ways from one page to a place on another; the source and rank that are looked at stay."""

from __future__ import annotations

from typing import NoReturn

import streamlit as st

from spark_prof.explorer import state, widgets

_KEPT = ("source", "rank", "other")


def link(path: str, label: str, **values: str | int) -> None:
    """Draws a link.

    Args:
        path: of the page, as its `Page` has it.
        label: any text.
        values: what the address of that page shall say.
    """
    st.page_link(_page(path), label=widgets.plain(label), query_params=_query(values))


def go(path: str, **values: str | int) -> NoReturn:
    """Leaves this page for a place on another."""
    st.switch_page(_page(path), query_params=_query(values))


def _page(path: str) -> st.Page:
    # Streamlit finds a page by its path: what a page of the same path would run does not matter.
    return st.Page(_nothing, title=path, url_path=path)


def _nothing() -> None:
    return None


def _query(values: dict[str, str | int]) -> dict[str, str]:
    kept = {name: value for name, value in state.shared().items() if name in _KEPT}
    return kept | {name: str(value) for name, value in values.items()}

"""Clicks on points of figures: Streamlit repeats a choice in every run, the address keeps it."""

from __future__ import annotations

from typing import Any

import streamlit as st

__all__ = ["clicked"]


def clicked(selection: Any, name: str) -> list[Any] | None:
    """The customdata of the point that was clicked just now; None if none was.

    Args:
        selection: what `widgets.figure` returned.
        name: of the figure.
    """
    points = selection.points if selection is not None else []
    found = points[0].get("customdata") if points else None
    key = f"clicked-{name}"
    if found == st.session_state.get(key):
        return None
    st.session_state[key] = found
    return found if isinstance(found, list) else None

"""What was chosen in a figure or a table, asked before a page draws anything: it may be left then.

Streamlit knows it by the key of what was drawn last time, and repeats it in every run.
"""

from __future__ import annotations

from typing import Any

import streamlit as st


def points(figure: str) -> list[Any]:
    """The customdata of the points that are chosen in a figure; a point without has none."""
    found = [point.get("customdata") for point in _chosen(figure, "points")]
    return [data for data in found if data is not None]


def rows(table: str) -> list[int]:
    """The places of the rows that are chosen in a table."""
    return list(_chosen(table, "rows"))


def clicked(figure: str) -> Any:
    """The customdata of the point that was chosen just now; None if none was."""
    found = next(iter(points(figure)), None)
    key = f"clicked-{figure}"
    if found == st.session_state.get(key):
        return None
    st.session_state[key] = found
    return found


def _chosen(name: str, kind: str) -> list[Any]:
    event: Any = st.session_state.get(name)
    return event["selection"][kind] if event and event.get("selection") else []

"""Draws tables that can be sorted by what their figures say, and taken along as CSV."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pandas as pd
import streamlit as st

from spark_prof.dashboards.formats import MISSING, Figure, clean, count
from spark_prof.dashboards.section import values_of

MOST_ROWS = 2000
"""So many rows are sent to the browser; the CSV has all."""

_PROSE = 70
"""Characters from which a column's texts are wrapped, in rows of three lines."""

_STYLED = 1500
"""Cells up to which written figures are sorted as such: more take pandas too long."""

_FORMULA = re.compile(r"[=@+\-\t\r]")
_FIGURE = re.compile(r"[+-][\d.,]+(e[+-]?\d+)?( ?[A-Za-z%/]{1,6})?")


def table(
    frame: pd.DataFrame,
    name: str,
    *,
    selectable: bool = False,
    whole: pd.DataFrame | Callable[[], pd.DataFrame] | None = None,
) -> list[int]:
    """Draws a table that can be sorted, searched and downloaded as CSV.

    Args:
        frame: its columns as they shall be titled; of a long one the first `MOST_ROWS` are drawn.
        name: of this table on its page: the CSV's file and the widget's key.
        selectable: a click on a row reruns the page.
        whole: what the CSV has where the drawn one is shortened, or what makes it, which is only
            called when somebody asks for the file.

    Returns:
        The places of the chosen rows in `frame`.
    """
    shown = sortable(frame.iloc[:MOST_ROWS])
    # A row of three lines where a text would else be cut in its first.
    height = 84 if _has_prose(frame.iloc[:MOST_ROWS]) else None
    options: dict[str, Any] = {"hide_index": True, "key": name, "row_height": height}
    chosen: list[int] = []
    if selectable:
        event: Any = st.dataframe(shown, on_select="rerun", selection_mode="single-row", **options)
        chosen = [row for row in event.selection.rows if 0 <= row < len(frame)]
    else:
        st.dataframe(shown, **options)

    def made() -> bytes:
        return csv_of(frame if whole is None else whole() if callable(whole) else whole)

    with st.container(horizontal=True, horizontal_alignment="right", vertical_alignment="center"):
        if len(frame) > MOST_ROWS:
            st.text(f"The first {count(MOST_ROWS)} of {count(len(frame))} rows; CSV has all.")
        st.download_button(
            "CSV", made, f"{name}.csv", "text/csv", key=f"{name}-csv", on_click="ignore",
            type="tertiary",
        )  # fmt: skip
    return chosen


def sortable(frame: pd.DataFrame) -> Any:
    """The table as it is drawn: texts clean, written figures as numbers that look as written.

    Returns:
        The frame, or pandas' Styler of it where figures are drawn as they were written.
    """
    drawn: dict[int, Any] = {}
    written: dict[int, dict[float, str]] = {}
    few = frame.size <= _STYLED
    for place in range(frame.shape[1]):
        values = frame.iloc[:, place]
        drawn[place] = values.reset_index(drop=True)
        if _is_text(values):
            texts = [_cleaned(value) for value in values]
            numbers = values_of(texts) if few else None
            if numbers is not None:
                written[place] = dict(zip(numbers, texts, strict=True))
            drawn[place] = pd.Series(texts if numbers is None else numbers)
    result = pd.DataFrame(drawn)
    titles = _titles(frame)
    result.columns = pd.Index(titles)
    if not written:
        return result
    styler: Any = result.style
    for place, names in written.items():
        styler = styler.format(names.__getitem__, subset=[titles[place]], na_rep=MISSING)
    return styler


def csv_of(frame: pd.DataFrame) -> bytes:
    """A table as CSV that a spreadsheet opens without running what a name holds."""
    safe = frame.copy(deep=False)
    for place in range(frame.shape[1]):
        values = frame.iloc[:, place]
        if _is_text(values):
            safe.isetitem(place, values.map(_no_formula).to_numpy())
    return safe.to_csv(index=False).encode("utf-8", "replace")


def _titles(frame: pd.DataFrame) -> list[str]:
    """The columns' titles, each another: blanks behind one do not show."""
    titles: list[str] = []
    for place, column in enumerate(frame.columns):
        title = clean(str(column))
        titles.append(title if title and title not in titles else title + " " * (place + 1))
    return titles


def _cleaned(value: Any) -> Any:
    return clean(value) if isinstance(value, str) and not isinstance(value, Figure) else value


def _is_text(values: pd.Series[Any]) -> bool:
    return isinstance(values.dtype, pd.StringDtype) or values.dtype.kind == "O"


def _no_formula(value: Any) -> Any:
    if isinstance(value, str) and len(value) > 1 and _FORMULA.match(value):
        return value if _FIGURE.fullmatch(value) else f"'{value}"
    return value


def _has_prose(frame: pd.DataFrame) -> bool:
    texts = frame.select_dtypes(include=["object", "string"])
    return any(
        " " in value and len(value) > _PROSE
        for column in texts
        for value in texts[column].head(50)
        if isinstance(value, str)
    )

"""How pages draw: every text is drawn as text, every table and figure can be taken along."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any, Literal

import pandas as pd
import plotly.graph_objects as go
import streamlit as st

from spark_prof.analyzers.classify.classifier import short_names
from spark_prof.analyzers.finding import TypedCommand
from spark_prof.dashboards.render.html_page import draw_figure
from spark_prof.dashboards.section import Section, values_of, without_bars
from spark_prof.dashboards.units import MISSING, WrittenFigure, clean, count
from spark_prof.explorer import state

MOST_ROWS = 2000  # so many rows are sent to the browser; the CSV has all

_PROSE = 70  # characters from which a column's texts are wrapped, in rows of three lines

_STYLED = 1500  # cells up to which written figures are sorted as such: more take pandas too long

_TALLEST = 16  # rows up to which a table shows all of them; a longer one is scrolled

_ROW, _LINE = 35, 25
"""Pixels; a row of three lines where a text would else be cut in its first."""

_OPEN_ROWS = f"<script>{(Path(__file__).parent / 'rows.js').read_text('utf-8')}</script>"

_FORMULA = re.compile(r"[=@+\-\t\r]")
_FIGURE = re.compile(r"[+-][\d.,]+(e[+-]?\d+)?( ?[A-Za-z%/]{1,6})?")


def table(
    frame: pd.DataFrame,
    name: str,
    *,
    selectable: bool = False,
    whole: pd.DataFrame | Callable[[], pd.DataFrame] | None = None,
    digits: Mapping[str, int] | None = None,
    widths: Mapping[str, int] | None = None,
    full: Sequence[str] | None = None,
) -> list[int]:
    """Draws a table that can be sorted, searched and downloaded as CSV.

    Args:
        frame: its columns as they shall be titled; of a long one the first `MOST_ROWS` are drawn.
        name: of this table on its page: the CSV's file and the widget's key.
        selectable: a click on a row, or Enter in it, reruns the page.
        whole: what the CSV has where the drawn one is shortened, or what makes it, which is only
            called when somebody asks for the file.
        digits: behind the point, of columns of numbers by their title.
        widths: in pixels, of columns by their title; with them each row is one line high.
        full: the name of each row's kernel as it was written, which only the CSV has.

    Returns:
        The places of the chosen rows in `frame`.
    """
    if full is not None:
        whole = frame.assign(**{"Full name": list(map(clean, full))})
    styled = sortable(frame.iloc[:MOST_ROWS])
    options = {"key": name, **_table_options(frame, digits or {}, widths or {})}
    chosen: list[int] = []
    if selectable:
        with st.container(key=f"rows-{name}"):
            st.html(_OPEN_ROWS, unsafe_allow_javascript=True)
            event: Any = st.dataframe(
                styled, on_select="rerun", selection_mode="single-row", **options
            )
        chosen = [row for row in event.selection.rows if 0 <= row < len(frame)]
    else:
        st.dataframe(styled, **options)

    def csv_bytes() -> bytes:
        return csv_of(frame if whole is None else whole() if callable(whole) else whole)

    with st.container(horizontal=True, horizontal_alignment="right", vertical_alignment="center"):
        if len(frame) > MOST_ROWS:
            st.text(f"The first {count(MOST_ROWS)} of {count(len(frame))} rows; CSV has all.")
        st.download_button(
            "CSV", csv_bytes, f"{name}.csv", "text/csv", key=f"{name}-csv", on_click="ignore",
            type="tertiary",
        )  # fmt: skip
    return chosen


def _table_options(
    frame: pd.DataFrame, digits: Mapping[str, int], widths: Mapping[str, int]
) -> dict[str, Any]:
    """How Streamlit draws a table: the height of it and of its rows, and its columns."""
    row = _ROW if widths else _row_height(frame.iloc[:MOST_ROWS])
    rows = min(len(frame), _TALLEST if row == _ROW else _TALLEST // 2)
    half = row // 2 if rows < len(frame) else 0  # it shows that there are more
    return {
        "hide_index": True,
        "row_height": row,
        "height": _ROW + max(rows, 1) * row + half + 2,
        "placeholder": "",
        "column_config": {
            title: st.column_config.NumberColumn(format=f"%.{digits[title]}f", width=width)
            if title in digits
            else st.column_config.Column(width=width)
            for title in dict.fromkeys((*digits, *widths))
            for width in [widths.get(title)]
        },
    }


def sortable(frame: pd.DataFrame) -> Any:
    """The table as it is drawn: texts clean, written figures as numbers that look as written.

    Returns:
        The frame, or pandas' Styler of it where figures are drawn as they were written.
    """
    drawn: dict[int, Any] = {}
    texts_by_column: dict[int, dict[float, str]] = {}
    few = frame.size <= _STYLED
    for place in range(frame.shape[1]):
        values = frame.iloc[:, place]
        drawn[place] = values.reset_index(drop=True)
        if _is_text(values):
            texts = [_cleaned(value) for value in values]
            numbers = values_of(texts) if few else None
            if numbers is not None:
                texts_by_column[place] = dict(zip(numbers, texts, strict=True))
            drawn[place] = pd.Series(texts if numbers is None else numbers)
    result = pd.DataFrame(drawn)
    titles = _titles(frame)
    result.columns = pd.Index(titles)
    if not texts_by_column:
        return result
    styler: Any = result.style
    for place, names in texts_by_column.items():
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
    return (
        clean(value) if isinstance(value, str) and not isinstance(value, WrittenFigure) else value
    )


def _is_text(values: pd.Series[Any]) -> bool:
    return isinstance(values.dtype, pd.StringDtype) or values.dtype.kind == "O"


def _no_formula(value: Any) -> Any:
    if isinstance(value, str) and len(value) > 1 and _FORMULA.match(value):
        return value if _FIGURE.fullmatch(value) else f"'{value}"
    return value


def _row_height(frame: pd.DataFrame) -> int:
    """The height of as many lines, three at most, as the longest text takes."""
    texts = frame.select_dtypes(include=["object", "string"])
    longest = max(
        (
            len(value)
            for column in texts
            for value in texts[column].head(50)
            if isinstance(value, str) and " " in value
        ),
        default=0,
    )
    return _ROW + _LINE * min(max(longest - 1, 0) // _PROSE, 2)


_CONFIG: Mapping[str, Any] = {
    "displaylogo": False,
    "displayModeBar": True,
    "modeBarButtonsToRemove": ["lasso2d"],
    "responsive": True,
}

_PUNCTUATION = re.compile(r"([!-/:-@\[-`{-~])")
_READ_LATER = re.compile(
    r"(?<=:)(?=\S)|(?<=@)(?=\w)|(?<=www)(?=\.)|(?<=[-<>=~])(?=[-<>=~])", re.IGNORECASE
)
_JOINER = "\u2060"


def plain(text: str) -> str:
    """Escapes a text for Streamlit's titles and labels, which read Markdown, so that they show it.

    Not for the options of a selectbox and a multiselect, nor for st.text and tables: those show
    `units.clean(text)` as it is. Emoji, icons, links and arrows are looked for in what the
    escapes stand for; an invisible joiner keeps their characters apart.
    """
    parts = _READ_LATER.split(clean(text))
    return _JOINER.join(_PUNCTUATION.sub(r"\\\1", part) for part in parts)


def lines(*texts: str) -> None:
    """Draws texts as they are: neither HTML nor Markdown in them is read."""
    for text in texts:
        st.text(clean(text))


def folded(name: str, label: str, draw: Callable[[], object]) -> None:
    """Draws what nobody sees at first: it is made, sent and drawn when it is unfolded.

    A table takes a browser a third of a second, most of it for the program that draws them.

    Args:
        name: of it on its page.
    """

    @st.fragment
    def fold() -> None:
        with st.expander(label, key=f"fold-{name}", on_change="rerun") as inside:
            if inside.open:
                draw()

    fold()


def command(text: TypedCommand) -> None:
    """Draws a command, which a click copies.

    st.code would load what colours the programs of a hundred languages: half a second of a start.
    """
    code = escape(clean(text))
    st.html(f'<pre class="command" tabindex="0" title="Click to copy"><code>{code}</code></pre>')


def facts(pairs: Sequence[tuple[str, str]], columns: int) -> None:
    """Draws what each fact is called and, below that, the fact; so many beside each other.

    They are one element: a browser takes about as long for each, however small.
    """
    cells = "".join(
        f"<div><dt>{escape(clean(name))}</dt><dd>{escape(clean(fact))}</dd></div>"
        for name, fact in pairs
    )
    st.html(f'<dl class="facts" style="--columns: {columns}">{cells}</dl>')


def choice(
    label: str,
    options: Sequence[str],
    name: str,
    *,
    values: Sequence[str] = (),
    forget: Sequence[str] = (),
) -> int:
    """Draws a list to choose one from; what is chosen lives in the address.

    Args:
        name: in the address.
        values: of each option in the address, its place if empty.
        forget: names that another choice takes out of the address.

    Returns:
        The place of the chosen one; that of the first where the address names none of them.
    """
    option_values = tuple(values) or tuple(map(str, range(len(options))))
    key = f"choice-{name}"
    # The address is right: it also changes by links and the browser's own buttons.
    st.session_state[key] = option_values.index(state.chosen(name, option_values[0], option_values))
    titles = [clean(option) for option in options]

    def changed() -> None:
        changes: dict[str, str | None] = dict.fromkeys(forget)
        state.keep(**changes | {name: option_values[st.session_state[key]]})

    st.selectbox(
        plain(label), range(len(titles)), format_func=titles.__getitem__, key=key, on_change=changed
    )
    return int(st.session_state[key])


def section(drawn: Section) -> None:
    """Draws a report's section: its title, sentences and table."""
    if not drawn.rows:
        return
    drawn = without_bars(drawn)
    st.subheader(plain(drawn.title), anchor=drawn.id)
    lines(*drawn.intro)
    titles = [column.title or " " * place for place, column in enumerate(drawn.columns)]
    if not "".join(titles).strip() and len(titles) == 2:
        facts([(str(name), str(fact)) for name, fact in drawn.rows], 2)
        return
    whole = frame_of(drawn, titles)
    frame = whole.copy(deep=False)
    for place, column in enumerate(drawn.columns):
        if column.kind == "name":
            names = whole.iloc[:, place].astype(str)
            frame.isetitem(place, names.map(short_names(names)).to_numpy())
    table(frame, drawn.id, whole=whole)


def frame_of(drawn: Section, titles: list[str] | None = None) -> pd.DataFrame:
    """The rows of a section, as objects: pandas would make texts of figures."""
    titles = titles or [column.title for column in drawn.columns]
    return pd.DataFrame(list(drawn.rows), columns=titles, dtype=object)


def figure(
    drawn: go.Figure, name: str, *, selection: Sequence[Literal["points", "box"]] = ()
) -> Any:
    """Draws a figure that can be downloaded as PNG and as HTML.

    Args:
        name: of this figure on its page: the file's name and the widget's key.
        selection: "points" or "box", what a user may choose in it; each choice reruns the page.

    Returns:
        What was chosen, as Streamlit's PlotlyState.selection; None where nothing can be.
    """
    config = {**_CONFIG, "toImageButtonOptions": {"format": "png", "filename": name, "scale": 2}}
    event: Any = None
    if selection:
        event = st.plotly_chart(
            drawn, key=name, theme=None, config=config, on_select="rerun", selection_mode=selection
        )
    else:
        st.plotly_chart(drawn, key=name, theme=None, config=config)
    with st.container(horizontal=True, horizontal_alignment="right"):
        # Five megabytes, which are only made when somebody asks for them.
        st.download_button(
            "HTML", lambda: draw_figure(drawn, name), f"{name}.html", "text/html",
            key=f"{name}-html", on_click="ignore", type="tertiary",
        )  # fmt: skip
    return event.selection if selection else None

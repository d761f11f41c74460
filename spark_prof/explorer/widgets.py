"""How pages draw: every text is drawn as text, every table and figure can be taken along."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any, Literal

import pandas as pd
import plotly.graph_objects as go
import streamlit as st

from spark_prof.dashboards.formats import clean
from spark_prof.dashboards.render.html_page import draw_figure
from spark_prof.dashboards.section import Section, cleaned_section, without_bars
from spark_prof.explorer import state
from spark_prof.explorer.tables import table

__all__ = ["choice", "facts", "figure", "lines", "plain", "section", "table"]

_CONFIG: Mapping[str, Any] = {
    "displaylogo": False,
    "displayModeBar": True,
    "modeBarButtonsToRemove": ["lasso2d"],
    "responsive": True,
}

_FACTS = """<style>
.facts { display: grid; grid-template-columns: repeat(var(--columns), minmax(0, 1fr)); }
.facts { gap: 1rem; margin: 0; }
.facts dt { font-size: 0.875rem; opacity: 0.7; }
.facts dd { margin: 0; overflow-wrap: anywhere; }
@media (max-width: 640px) { .facts { grid-template-columns: minmax(0, 1fr); } }
</style>"""

_PUNCTUATION = re.compile(r"([!-/:-@\[-`{-~])")
_READ_LATER = re.compile(
    r"(?<=:)(?=\S)|(?<=@)(?=\w)|(?<=www)(?=\.)|(?<=[-<>=~])(?=[-<>=~])", re.IGNORECASE
)
_JOINER = "\u2060"


def plain(text: str) -> str:
    """Escapes a text for Streamlit's titles and labels, which read Markdown, so that they show it.

    Not for the options of a selectbox and a multiselect, nor for st.text and tables: those show
    `formats.clean(text)` as it is. Emoji, icons, links and arrows are looked for in what the
    escapes stand for; an invisible joiner keeps their characters apart.
    """
    parts = _READ_LATER.split(clean(text))
    return _JOINER.join(_PUNCTUATION.sub(r"\\\1", part) for part in parts)


def lines(texts: Sequence[str]) -> None:
    """Draws texts as they are: neither HTML nor Markdown in them is read."""
    for text in texts:
        st.text(clean(text))


def facts(pairs: Sequence[tuple[str, str]], columns: int) -> None:
    """Draws what each fact is called and, below that, the fact; so many beside each other.

    They are one element: a browser takes about as long for each, however small.
    """
    cells = "".join(
        f"<div><dt>{escape(clean(name))}</dt><dd>{escape(clean(fact))}</dd></div>"
        for name, fact in pairs
    )
    st.html(f'{_FACTS}<dl class="facts" style="--columns: {columns}">{cells}</dl>')


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
        label: above it.
        options: what is shown, each another.
        name: in the address.
        values: of each option in the address, its place if empty.
        forget: names that another choice takes out of the address.

    Returns:
        The place of the chosen one; that of the first where the address names none of them.
    """
    known = tuple(values) or tuple(map(str, range(len(options))))
    key = f"choice-{name}"
    # The address is right: it also changes by links and the browser's own buttons.
    st.session_state[key] = known.index(state.chosen(name, known[0], known))
    shown = [clean(option) for option in options]

    def changed() -> None:
        taken: dict[str, str | None] = dict.fromkeys(forget)
        state.keep(**taken | {name: known[st.session_state[key]]})

    st.selectbox(
        plain(label), range(len(shown)), format_func=shown.__getitem__, key=key, on_change=changed
    )
    return int(st.session_state[key])


def section(drawn: Section) -> None:
    """Draws a report's section: its title, sentences and table."""
    if not drawn.rows:
        return
    drawn = cleaned_section(without_bars(drawn))
    st.subheader(plain(drawn.title), anchor=drawn.id)
    lines(drawn.intro)
    titles = [column.title or " " * place for place, column in enumerate(drawn.columns)]
    # As objects, because pandas would make texts of figures.
    table(pd.DataFrame(list(drawn.rows), columns=titles, dtype=object), drawn.id)


def figure(
    drawn: go.Figure, name: str, *, selection: Sequence[Literal["points", "box"]] = ()
) -> Any:
    """Draws a figure that can be downloaded as PNG and as HTML.

    Args:
        drawn: of `dashboards.charts` and its neighbours.
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

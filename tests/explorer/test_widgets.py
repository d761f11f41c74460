"""Texts are drawn as texts, tables and figures can be taken along."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from streamlit.testing.v1 import AppTest

from spark_prof.dashboards.render.html_page import draw_figure
from spark_prof.dashboards.section import values_of
from spark_prof.dashboards.units import bandwidth, clean, decimal_size, microseconds, share, size
from spark_prof.explorer.widgets import MOST_ROWS, csv_of, plain, sortable
from tests.fuzz.hostile import TEXTS
from tests.rows import each_row

SPECIAL = set("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~")


@each_row("text", TEXTS)
def test_a_plain_text_says_the_same_with_every_special_character_escaped(text: str) -> None:
    drawn = plain(text)
    assert re.sub(r"\\(.)", r"\1", drawn).replace("\u2060", "") == clean(text)
    assert not SPECIAL & set(re.sub(r"\\.", "", drawn))


@each_row(
    "text", [":smile:", ":material/home:", ":red[x]", "http://a.b", "www.a.b", "a@b.c", "->", "<-"]
)
def test_what_is_looked_for_in_escaped_text_is_kept_apart(text: str) -> None:
    assert text not in re.sub(r"\\(.)", r"\1", plain(text))


@each_row("write", [microseconds, size, decimal_size, share, bandwidth])
def test_figures_sort_as_what_they_say(write: Callable[[float], str]) -> None:
    numbers = [0, *(m * 10**n for n in range(12) for m in (1, 2.5, 9.99))]
    assert values_of([write(n) for n in numbers]) == [
        round(n) if write is size else n for n in numbers
    ]


def test_what_is_no_figure_is_none() -> None:
    values = values_of(["-", "", microseconds(2.0), share(None)])
    assert values is not None
    assert np.nan_to_num(values, nan=-1).tolist() == [-1, -1, 2, -1]
    assert values_of(["-", "-"]) is None
    assert values_of([microseconds(1.0), "none"]) is None


def test_written_figures_are_numbers_that_look_as_written() -> None:
    written = [microseconds(1503.2), "-", microseconds(812.4), microseconds(1.234e9)]
    frame = pd.DataFrame({"name": list("abcd"), "time": written}, dtype=object)
    styler = sortable(frame)
    assert np.nan_to_num(styler.data["time"], nan=-1).tolist() == [1503.2, -1, 812.4, 1.234e9]
    cells = [row[-1]["display_value"] for row in styler._translate(False, False)["body"]]
    assert cells == ["1.50 ms", "-", "812.4 us", "1,234.00 s"]


def test_texts_of_tables_are_clean_and_titles_differ() -> None:
    frame = pd.DataFrame([["\x1b[31mred\u202e", 1, 2, 3]], columns=["a\x00", "a", "", ""])
    drawn = sortable(frame)
    assert drawn.iloc[0].tolist() == ["red", 1, 2, 3]
    assert len(set(drawn.columns)) == 4


@each_row("text", [text for text in TEXTS if text.isascii()])
def test_no_cell_of_a_csv_is_a_formula(text: str) -> None:
    frame = pd.DataFrame({"name": [text, "+3.1 %", "-2 us", "-"], "value": [-1.5, 1, 2, 3]})
    read = list(csv.reader(io.StringIO(csv_of(frame).decode(), newline="")))
    assert [row[1] for row in read[1:]] == ["-1.5", "1.0", "2.0", "3.0"]
    assert [row[0] for row in read[2:]] == ["+3.1 %", "-2 us", "-"]
    assert read[1][0][:1] not in set("=+-@\t\r")


def _tables() -> None:
    import pandas as pd
    import streamlit as st

    from spark_prof.explorer import widgets

    long = pd.DataFrame({"name": [f"kernel {n}" for n in range(5000)], "us": range(5000)})
    st.session_state.asked = 0

    def whole() -> pd.DataFrame:
        st.session_state.asked += 1
        return long

    widgets.table(long, "long")
    widgets.table(long.head(3), "short", whole=whole)


def test_a_long_table_is_sent_in_part_and_a_csv_made_when_it_is_asked_for() -> None:
    app = AppTest.from_function(_tables, default_timeout=60).run()
    assert not app.exception
    assert [len(table.value) for table in app.dataframe] == [MOST_ROWS, 3]
    assert "The first 2,000 of 5,000 rows" in app.text[0].value
    assert app.session_state.asked == 0
    assert len(app.get("download_button")) == 2


def _choices() -> None:
    import streamlit as st

    from spark_prof.explorer import widgets

    options = ["<b>one</b>", ":red[two]", "three\x1b[0m"]
    st.text(widgets.choice("$x$ **which**", options, "which", forget=["gone"]))
    st.text(widgets.choice("named", ["a", "b"], "named", values=["first", "second"]))


def test_a_choice_lives_in_the_address() -> None:
    app = AppTest.from_function(_choices, default_timeout=60)
    app.query_params["which"] = "1"
    app.query_params["gone"] = app.query_params["stays"] = "x"
    app.run()
    assert [text.value for text in app.text] == ["1", "0"]
    assert app.selectbox[0].options == ["<b>one</b>", ":red[two]", "three"]
    app.selectbox[0].select_index(2).run()
    app.selectbox[1].select_index(1).run()
    assert app.query_params == {"which": "2", "stays": "x", "named": "second"}
    app.query_params["which"] = "0"
    assert [text.value for text in app.run().text] == ["0", "1"]


def test_a_figure_s_page_loads_nothing_from_anywhere() -> None:
    figure = go.Figure(go.Bar(x=["a"], y=[1]))
    page = draw_figure(figure, "</title><script>alert(1)</script>")
    assert "default-src 'none'" in page.replace("&#39;", "'")
    assert "</title><script>alert" not in page
    assert not re.search(r"<(script|link|img)[^>]+(src|href)=", page)
    assert "Plotly.newPlot" in page

"""What a page reads from the address is what it can use, whatever stands there."""

from __future__ import annotations

import pytest
from streamlit.testing.v1 import AppTest

from tests.fuzz.hostile import TEXTS


def _read() -> None:
    import streamlit as st

    from spark_prof.explorer import state

    st.text(state.chosen("word", "a", ("a", "b")))
    st.text(state.chosen_number("number", 7, -1, 10))
    st.text(len(state.chosen("text")))
    state.keep(word=None, new="x", number=3)
    st.text(repr(state.shared()))


def read(**address: str) -> tuple[list[str], dict[str, str]]:
    app = AppTest.from_function(_read, default_timeout=60)
    for name, value in address.items():
        app.query_params[name] = value
    app.run()
    assert not app.exception
    return [text.value for text in app.text], dict(app.query_params)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("3", 3),
        ("-1", -1),
        ("-2", 7),
        ("11", 7),
        ("1e1", 7),
        ("", 7),
        ("9" * 5000, 7),
        ("\u0663", 3),
    ],
)
def test_a_number_is_one_of_those_that_may_be(text: str, number: int) -> None:
    assert read(number=text)[0][1] == str(number)


@pytest.mark.parametrize("text", [t for t in TEXTS if t.isascii() and t.isprintable()])
def test_a_word_is_one_of_those_that_may_be(text: str) -> None:
    assert read(word=text)[0][0] == "a"


def test_what_is_long_is_cut() -> None:
    assert read(text="x" * 9000)[0][2] == "500"


def test_others_stay_and_what_is_shared_is_told() -> None:
    said, address = read(word="b", step="4", mine="5")
    assert said[0] == "b"
    assert said[3] == "{'step': '4'}"
    assert address == {"new": "x", "number": "3", "step": "4", "mine": "5"}

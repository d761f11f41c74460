"""What a page reads from the address is what it can use, whatever stands there."""

from __future__ import annotations

from streamlit.testing.v1 import AppTest

from tests.rows import each_row


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


@each_row(
    ("text", "number"),
    [("3", 3), ("-1", -1), ("-2", 7), ("11", 7), ("", 7), ("9" * 5000, 7), ("\u0663", 3)],
)
def test_a_number_is_one_of_those_that_may_be(text: str, number: int) -> None:
    said, _ = read(number=text, word=text, text="x" * 9000)
    assert said[:3] == ["a", str(number), "500"]


def test_others_stay_and_what_is_shared_is_told() -> None:
    said, address = read(word="b", step="4", mine="5")
    assert said[0] == "b"
    assert said[3] == "{'step': '4'}"
    assert address == {"new": "x", "number": "3", "step": "4", "mine": "5"}

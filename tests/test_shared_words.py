"""What a shared recording says of a command: settings that are numbers, no private word."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_prof.exporters.pseudonyms import Pseudonyms
from spark_prof.exporters.shared_facts import shared_command

MANY = settings(max_examples=120, deadline=None, derandomize=True, database=None)
SECRET = {"zyxcorp": "user", "quuxlab": "host", "frobnia": "value", "zork-plugh": "user"}
PLAIN = ("alpha", "b2", "gamma", "layer7", "x")


def value_of(option: str, value: str) -> str:
    """What is shown of the value of an option."""
    *_, shown = shared_command(["vllm", "serve", "m", option, value], Pseudonyms())
    return shown


@MANY
@given(st.integers(0, 10**9), st.sampled_from(["--max-model-len", "-tp", "--batch", "--steps",
                                               "--never-heard-of", "--zork"]))  # fmt: skip
def test_a_long_number_stays_only_where_it_counts_something(number: int, option: str) -> None:
    known = option not in ("--never-heard-of", "--zork")
    assert (value_of(option, str(number)) == str(number)) is (known or len(str(number)) <= 5)


@pytest.mark.parametrize("option", ["--max-model-len", "--never-heard-of"])
def test_a_word_that_nobody_knows_never_stays(option: str) -> None:
    for word in ("zyxcorp", "zyx corp", "1zyxcorp", '{"a": "zyxcorp"}', "/srv/zyxcorp"):
        assert "zyx" not in value_of(option, word)


@MANY
@given(st.lists(st.tuples(st.sampled_from([*SECRET, *PLAIN]),
                          st.sampled_from([".", "_", "-", "--", " ", ", "]), st.booleans()),
                min_size=1, max_size=9))  # fmt: skip
def test_a_word_once_learned_stands_nowhere_and_all_others_stay(
    parts: list[tuple[str, str, bool]],
) -> None:
    names = Pseudonyms()
    for word, kind in SECRET.items():
        names.learn(kind, word)
    text = "".join((word.upper() if loud else word) + between for word, between, loud in parts)
    shown = names.without_known(text)
    assert not any(word in shown.lower() for word in SECRET)
    others = [word.upper() if loud else word for word, _, loud in parts if word in PLAIN]
    left = re.sub(r"(?:user|host|value)-\d+", "", shown)
    assert re.findall(r"[A-Za-z0-9]+", left) == others
    if not set(SECRET) & {word for word, _, _ in parts}:
        assert shown == text
    assert names.without_known(shown) == shown
    assert {names.name(kind, word) for word, kind in SECRET.items()} == {
        "user-1", "host-1", "value-1", "user-2"
    }  # fmt: skip

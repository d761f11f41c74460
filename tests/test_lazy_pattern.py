"""A pattern that is compiled when it is first searched for."""

from __future__ import annotations

import re

import pytest

from spark_prof.lazy_pattern import LazyPattern


def test_it_searches_like_the_compiled_pattern() -> None:
    lazy = LazyPattern(r"a(?P<rest>.+)", re.DOTALL)
    match = lazy.search("bac\nd")
    assert match
    assert match["rest"] == "c\nd"
    assert lazy.search("bc") is None
    assert dict(lazy.groupindex) == {"rest": 1}


def test_what_is_no_pattern_fails_when_it_is_searched_for() -> None:
    lazy = LazyPattern("(")
    with pytest.raises(re.error):
        lazy.search("a")

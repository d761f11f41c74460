"""The report as a page: complete in one file, and inert whatever the names are."""

from __future__ import annotations

import re
from functools import cache

import pytest
from plotly.offline import get_plotlyjs

from spark_prof.dashboards.formats import clean
from spark_prof.dashboards.render import RENDERERS

from .page import Page
from .sample import HOSTILE_NAME, SAMPLES


@cache
def _page(sample: str) -> Page:
    return Page(RENDERERS["html"](SAMPLES[sample]))


def test_a_hostile_report_has_the_scripts_of_an_honest_one() -> None:
    assert len(_page("hostile").scripts) == len(_page("mixture_of_experts").scripts)


def test_hostile_names_in_scripts_are_strings_without_tags() -> None:
    own = [script for script in _page("hostile").scripts if script != get_plotlyjs()]
    charts = "".join(script for script in own if "Plotly.newPlot" in script)
    assert "alert(1)" in charts
    assert not re.search(r"<[a-z/!]", charts, re.I)
    # Plotly would read tags that JSON merely encodes: there have to be entities inside.
    assert r"\u003cscript" not in charts
    assert r"\u0026lt;script" in charts


def test_hostile_names_are_shown_as_they_are() -> None:
    texts = "".join(_page("hostile").texts)
    assert clean(HOSTILE_NAME) in texts
    assert "\x1b" not in texts


@pytest.mark.parametrize(
    ("sample", "copies"), [("mixture_of_experts", 1), ("almost_empty", 1), ("nothing", 0)]
)
def test_brings_plotly_once(sample: str, copies: int) -> None:
    assert RENDERERS["html"](SAMPLES[sample]).count(get_plotlyjs()) == copies

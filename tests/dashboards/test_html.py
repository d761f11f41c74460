"""The report as a page: complete in one file, and inert whatever the names are."""

from __future__ import annotations

import re
from functools import cache
from html.parser import HTMLParser

import pytest
from plotly.offline import get_plotlyjs

from spark_prof.dashboards.formats import clean
from spark_prof.dashboards.html import render

from .sample import HOSTILE_NAME, SAMPLES

# What a section is built of; a tag that is not here came from a name.
_TAGS = {
    "html",
    "head",
    "meta",
    "title",
    "style",
    "body",
    "main",
    "h1",
    "h2",
    "dl",
    "div",
    "dt",
    "dd",
    "section",
    "p",
    "table",
    "thead",
    "tbody",
    "tr",
    "th",
    "td",
    "ul",
    "li",
    "code",
    "details",
    "summary",
    "script",
}


class _Page(HTMLParser):
    """Collects a page's tags, texts and scripts as a browser would see them."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.scripts: list[str] = []
        self.feed(source)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag == "script":
            self.scripts.append("")

    def handle_data(self, data: str) -> None:
        if self.cdata_elem == "script":
            self.scripts[-1] += data
        else:
            self.texts.append(data)


@cache
def _page(sample: str) -> _Page:
    return _Page(render(SAMPLES[sample]))


@pytest.mark.parametrize("sample", SAMPLES)
def test_has_only_its_own_tags(sample: str) -> None:
    assert {tag for tag, _ in _page(sample).tags} <= _TAGS


@pytest.mark.parametrize("sample", SAMPLES)
def test_loads_nothing(sample: str) -> None:
    for tag, attributes in _page(sample).tags:
        assert not attributes.keys() & {"src", "href", "srcset", "action"}, tag
        assert not any(name.startswith("on") for name in attributes), tag
    assert "url(" not in "".join(_page(sample).texts)


def test_a_hostile_report_has_the_scripts_of_an_honest_one() -> None:
    assert len(_page("hostile").scripts) == len(_page("mixture_of_experts").scripts)


def test_hostile_names_in_scripts_are_strings_without_tags() -> None:
    own = [script for script in _page("hostile").scripts if script != get_plotlyjs()]
    charts = "".join(script for script in own if "Plotly.newPlot" in script)
    assert "alert(1)" in charts
    assert not re.search(r"<[a-z/!]", charts, re.I)
    # Plotly would read tags that JSON merely encodes: there have to be entities inside.
    assert r"\u003cscript" not in charts
    assert "&lt;script" in charts


def test_hostile_names_are_shown_as_they_are() -> None:
    texts = "".join(_page("hostile").texts)
    assert clean(HOSTILE_NAME) in texts
    assert "\x1b" not in texts


@pytest.mark.parametrize(
    ("sample", "copies"), [("mixture_of_experts", 1), ("almost_empty", 1), ("nothing", 0)]
)
def test_brings_plotly_once(sample: str, copies: int) -> None:
    assert render(SAMPLES[sample]).count(get_plotlyjs()) == copies

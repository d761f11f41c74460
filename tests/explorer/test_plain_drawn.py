"""Hostile names in a real browser: Streamlit shows what they say and makes nothing of them."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page

from spark_prof.dashboards.units import clean
from tests.browser.chromium import chromium, found
from tests.browser.served import Served
from tests.fuzz.hostile import TEXTS

MARKED = (
    "at::native::foo<int, (bool)1>(a*)", "**bold** _it_ `code` ~~s~~ #h", "# head", "1. list",
    "- item", "> quote", "| a | b |", ":red[x] :red-background[y] :badge[z]", "$x^2$ $$y$$",
    ":smile: :material/home: :streamlit: :+1:", "http://a.b/c www.a.b/c a@b.cc mailto:a@b.cc",
    "[l](javascript:alert(1)) ![i](http://a/b.png) <http://a.b>", "<b>b</b><img src=x onerror=a()>",
    "-> <- <-> -- --- >= <= ~=", "&amp; &#58; \\ \\*", "[^1] [x] [ ] a\\",
    "void k<<<1,2>>>(__half2)",
)  # fmt: skip
NAMES = [text for text in dict.fromkeys(map(clean, (*MARKED, *TEXTS))) if text]

_APP = """
import json, pathlib
import streamlit as st
from spark_prof.explorer.widgets import facts, plain

names = json.loads(pathlib.Path(__file__).with_name("names.json").read_text())
for place, name in enumerate(names):
    st.subheader(plain(name), anchor=False)
    st.button(plain(name), key=f"button-{place}")
    st.metric(plain(name), "1")
    st.text(name)
facts([(name, name) for name in names], 2)
st.radio("all", [plain(name) for name in names])
st.tabs([plain(name) for name in names])
"""

_DRAWN = {
    "heading": "[data-testid=stHeading]",
    "button": "[data-testid=stButton] button",
    "metric": "[data-testid=stMetricLabel]",
    "text": "[data-testid=stText]",
    "option": "[data-testid=stRadio] label:has(input)",
    "fact": ".facts dd",
    "fact's name": ".facts dt",
    "tab": "[data-testid=stTab]",
}
_MADE = (
    "strong, em, code, del, li, blockquote, table, h1, img, .katex, [data-testid=stIconMaterial]"
)


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    path = found()
    if path is None:
        pytest.skip("there is no chromium on the path; apt-get install chromium")
    folder: Path = tmp_path_factory.mktemp("app")
    (folder / "names.json").write_text(json.dumps(NAMES))
    (folder / "app.py").write_text(_APP)
    command = [sys.executable, "-m", "streamlit", "run", str(folder / "app.py")]
    command += ["--server.address", "127.0.0.1", "--server.headless", "true"]
    command += ["--browser.gatherUsageStats", "false", "--server.fileWatcherType", "none"]
    with Served(command, folder, port_option="--server.port") as served, chromium(path) as browser:
        opened = browser.new_page()
        opened.goto(served.url)
        opened.wait_for_selector(_DRAWN["tab"], timeout=120_000)
        yield opened


@pytest.mark.parametrize("kind", _DRAWN)
def test_every_name_is_drawn_as_it_is(page: Page, kind: str) -> None:
    # Streamlit loads what draws each kind when it is first needed.
    page.wait_for_selector(_DRAWN[kind], timeout=60_000)
    script = "all => all.map(one => one.textContent)"
    drawn = page.eval_on_selector_all(_DRAWN[kind], script)
    shown = {" ".join(text.replace("\u2060", "").split()) for text in drawn}
    missing = [name for name in NAMES if name not in shown]
    assert missing == []


def test_nothing_is_made_of_a_name(page: Page) -> None:
    for selector in _DRAWN.values():
        page.wait_for_selector(selector, timeout=60_000)
    within = ", ".join(f"[data-testid=stMain] {kind.strip()}" for kind in _MADE.split(","))
    script = "all => all.map(one => one.outerHTML)"
    assert page.eval_on_selector_all(within, script) == []
    links = page.eval_on_selector_all("[data-testid=stMain] a", script)
    assert [link for link in links if "stSkipToContent" not in link] == []

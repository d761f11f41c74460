"""The first page can be read before Streamlit has started, and gives way to it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from tests.browser.conftest import PICTURES
from tests.browser.hostile import ACTED, write_hostile
from tests.browser.served import EXPLORE, Served, address
from tests.browser.sources import OWN
from tests.browser.view import View


@pytest.fixture(scope="module", params=["graphs", "cpu", "ab", "hostile"])
def started(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, Path, Path]:
    """A source and an empty folder for what a server keeps."""
    folder = tmp_path_factory.mktemp("first")
    name = request.param
    if name == "hostile":
        return name, write_hostile(OWN["graphs"], folder / "<b>`fuzzed`"), folder
    return name, OWN[name], folder


def test_it_can_be_read_without_any_script(
    browser: Browser, started: tuple[str, Path, Path]
) -> None:
    name, source, folder = started
    context = browser.new_context(java_script_enabled=False)
    with Served([*EXPLORE, str(source)], folder) as served:
        page = context.new_page()
        page.goto(address(served.url))
        early = page.locator("#early")
        assert early.locator("nav a").count() == 9
        if name == "ab":  # a result has another page
            assert not early.locator("h1").count()
        else:
            assert early.locator(".verdict").inner_text()
            assert early.locator(".bars i").count() > 1
        page.screenshot(path=PICTURES / f"first-page-{name}.png")
    assert "Traceback" not in served.log
    context.close()


def test_streamlit_says_the_same_and_takes_its_place(
    fresh: Callable[..., View], started: tuple[str, Path, Path]
) -> None:
    name, source, folder = started
    with Served([*EXPLORE, str(source)], folder) as served:
        view = fresh(served.url, known=False)
        view.page.goto(address(served.url), wait_until="commit")
        if name != "ab":
            early = view.page.locator("#early")
            first = early.locator(".verdict").inner_text()
            findings = early.locator(".finding p").all_inner_texts()
            view.page.locator("#early").wait_for(state="detached")
            view.settle(runs=1)
            assert first in view.text
            assert all(text in view.text for text in findings)
        view.settle(runs=1)
        assert not view.page.locator("#early").count()
        assert not view.page.evaluate(ACTED)
        view.check()
        view.page.close()


def test_its_links_lead_to_the_pages(browser: Browser, tmp_path: Path) -> None:
    context = browser.new_context()
    with Served([*EXPLORE, str(OWN["graphs"])], tmp_path) as served:
        view = View(context.new_page(), served.url)
        view.page.goto(address(served.url), wait_until="commit")
        layers = view.page.locator("#early nav a").nth(1)
        assert layers.get_attribute("href") == "./layers"
        view.go(f"{served.url}/layers")
        assert view.titles()[0] == "Layers"
    context.close()

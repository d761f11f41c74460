"""Texts of a recording are drawn as texts on every page, whatever is in them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import BrowserContext

from tests.browser.conftest import Site
from tests.browser.hostile import ACTED
from tests.browser.navigation import go_to, links
from tests.browser.saved import check_page
from tests.browser.view import View


def assert_nothing_acted(view: View) -> None:
    acted = view.page.evaluate(ACTED)
    assert not acted, f"{view.page.url}: {acted[:3]}"
    view.check()


@pytest.mark.parametrize("source", ["hostile", "hostile-trace"])
def test_every_page(site: Site, fresh: Callable[..., View], source: str) -> None:
    view = fresh(site.served.url).open(source=site.places[source])
    for place in range(links(view).count()):
        go_to(view, place)
        assert_nothing_acted(view)


def test_details(site: Site, fresh: Callable[..., View]) -> None:
    """Kernels by their number: one for each attack, and its words can be read on the page."""
    view = fresh(site.served.url)
    source = site.places["hostile"]
    shown = ""
    for kernel in range(6):
        view.open("kernels", source=source, kernel=kernel)
        assert_nothing_acted(view)
        shown += view.unfold().text
    for word in ("onerror=", "<script>window.fuzzed=1</script>", "](http://fuzzed.example/"):
        assert word in shown, f"{word} is not shown as it is"


def test_files_of_figures(
    site: Site, fresh: Callable[..., View], context: BrowserContext, tmp_path: Path
) -> None:
    """What is taken along is as harmless."""
    view = fresh(site.served.url).open("kernels", source=site.places["hostile"], kernel=0)
    for name in view.figures():
        saved = view.download(view.keyed(f"{name}-html").locator("button"), tmp_path)
        assert check_page(context, saved) == 1

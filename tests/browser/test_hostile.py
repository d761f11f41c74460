"""Texts of a recording are drawn as texts on every page, whatever is in them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from playwright.sync_api import BrowserContext

from tests.browser.conftest import Site
from tests.browser.hostile import ACTED
from tests.browser.saved import check_page
from tests.browser.view import View, go_to, pages


def assert_nothing_acted(view: View) -> None:
    acted = view.page.evaluate(ACTED)
    assert not acted, f"{view.page.url}: {acted[:3]}"
    view.check()


def test_every_page(site: Site, fresh: Callable[..., View]) -> None:
    view = fresh(site.served.url).open(source=site.places["hostile"])
    for path in pages(view):
        assert_nothing_acted(go_to(view, path))
    for path in ("", "kernels"):
        assert_nothing_acted(view.open(path, source=site.places["hostile-trace"]))


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

"""Every page of every kind of source: something is drawn, nothing is wrong."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.browser.conftest import Site
from tests.browser.navigation import go_to, pages
from tests.browser.view import View

LOOKED_AT = ("nvfp4", "ranks")
"""Sources of which every page is opened; tests/explorer draws all kinds, without a browser."""

RECORDINGS = ("overview", "layers", "timeline", "kernels", "conversions", "fallbacks", "ranks",
              "steps", "compare")  # fmt: skip


def look(view: View) -> None:
    """Goes through the pages by the navigation; each has a title and something below it."""
    for path in pages(view):
        go_to(view, path).check()
        assert view.titles(), view.page.url
        assert len(view.text) > 40, f"{view.page.url} is empty: {view.text}"


@pytest.mark.parametrize("source", LOOKED_AT)
def test_recordings(site: Site, fresh: Callable[..., View], source: str) -> None:
    view = fresh(site.served.url).open(source=site.places[source])
    assert tuple(path or "overview" for path in pages(view)) == RECORDINGS
    look(view)


def test_results_of_ab(site: Site, fresh: Callable[..., View]) -> None:
    look(fresh(site.served.url).open(source=site.places["ab"]))

"""Every page of every kind of source: something is drawn, nothing is wrong."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from tests.browser.conftest import Site
from tests.browser.navigation import go_to, pages
from tests.browser.view import View

OWN = ("graphs", "nvfp4", "dense-awq", "kineto", "cpu", "summed", "counted", "ranks")
MEASURED = ("graphs", "nvfp4", "ranks")
SHARED = ("b200", "owlv2", "resnet", "triton", "two-processes", "flash", "mock", "sums", "dlrm")
WHOLE = ("b200", "dlrm")
"""Of those the ones of which every page is looked at, as of those that were measured here."""

SOME = ("", "layers", "timeline", "kernels")
"""Pages of the others; tests/explorer draws all of them, without a browser."""

RECORDINGS = ("overview", "layers", "timeline", "kernels", "conversions", "fallbacks", "ranks",
              "steps", "compare")  # fmt: skip


def look(view: View, only: Sequence[str] = ()) -> None:
    """Goes through the pages by the navigation; each has a title and something below it."""
    for path in only or pages(view):
        go_to(view, path).check()
        assert view.titles(), view.page.url
        assert len(view.text) > 40, f"{view.page.url} is empty: {view.text}"


@pytest.mark.parametrize("source", OWN)
def test_recordings_of_this_project(site: Site, fresh: Callable[..., View], source: str) -> None:
    view = fresh(site.served.url).open(source=site.places[source])
    assert tuple(path or "overview" for path in pages(view)) == RECORDINGS
    look(view, () if source in MEASURED else SOME)


@pytest.mark.parametrize("source", ["ab", "ab-cpu"])
def test_results_of_ab(site: Site, fresh: Callable[..., View], source: str) -> None:
    view = fresh(site.served.url).open(source=site.places[source])
    look(view)


@pytest.mark.parametrize("source", SHARED)
def test_traces_of_others(foreign: Site, fresh: Callable[..., View], source: str) -> None:
    view = fresh(foreign.served.url).open(source=foreign.places[source])
    look(view, () if source in WHOLE else SOME[1:])

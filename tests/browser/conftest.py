"""One server and one browser for all tests of this folder, and a look at every page they opened."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pytest
from playwright.sync_api import Browser, BrowserContext, ViewportSize

from tests.browser import chromium, sources
from tests.browser.served import EXPLORE, Served, let_in
from tests.browser.view import View

PICTURES = Path(__file__).resolve().parents[2] / "build" / "screenshots"
_MISSING = "there is no chromium on the path; apt-get install chromium"
_WIDTH, _HEIGHT = 1400, 900

ColorScheme = Literal["light", "dark"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = [item for item in items if "tests/browser/" in item.path.as_posix()]
    missing = chromium.found() is None and not chromium.needed()
    for item in here:
        item.add_marker(pytest.mark.browser)
        if missing:
            item.add_marker(pytest.mark.skip(reason=_MISSING))


@dataclass(frozen=True)
class Site:
    """A running explorer and what it was started with.

    Attributes:
        served: the server.
        places: of each source in the list, by the name that the tests call it.
        paths: of each source.
    """

    served: Served
    places: Mapping[str, int]
    paths: Mapping[str, Path]


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    path = chromium.found()
    assert path, _MISSING
    with chromium.chromium(path) as running:
        yield running


@pytest.fixture(scope="package")
def context(browser: Browser) -> BrowserContext:
    return browser.new_context(viewport={"width": _WIDTH, "height": _HEIGHT})


def _serve(folder: Path, paths: Mapping[str, Path]) -> Site:
    served = Served([*EXPLORE, *map(str, paths.values())], folder)
    return Site(served, {name: place for place, name in enumerate(paths)}, paths)


@pytest.fixture(scope="package")
def site(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """This project's recordings."""
    folder = tmp_path_factory.mktemp("explorer")
    found = _serve(folder, sources.own(folder))
    with found.served:
        yield found
    assert "Traceback" not in found.served.log, found.served.log[-4000:]


@pytest.fixture
def fresh(browser: Browser, context: BrowserContext) -> Iterator[Callable[..., View]]:
    """Makes empty views of a server; what they show must be without fault when the test ends.

    With a theme, a width or `known=False` it is a browser that has never been there.
    """
    made: list[View] = []
    contexts: list[BrowserContext] = []

    def make(
        url: str, *, theme: ColorScheme | None = None, width: int = _WIDTH, known: bool = True
    ) -> View:
        inside = context
        if theme or width != _WIDTH or not known:
            size: ViewportSize = {"width": width, "height": _HEIGHT}
            inside = browser.new_context(viewport=size, color_scheme=theme)
            contexts.append(inside)
        let_in(inside, url)
        made.append(View(inside.new_page(), url))
        return made[-1]

    yield make
    try:
        for view in made:
            if not view.page.is_closed():
                view.check()
    finally:
        for view in made:
            view.page.close()
        for one in contexts:
            one.close()


@pytest.fixture
def explore(site: Site, fresh: Callable[..., View]) -> Callable[..., View]:
    """Opens a page of the explorer: `explore("layers", "graphs", layer=3)`."""

    def opened(path: str = "", source: str = "graphs", **state: object) -> View:
        return fresh(site.served.url).open(path, source=site.places[source], **state)

    return opened

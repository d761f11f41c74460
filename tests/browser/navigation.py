"""How a person gets from page to page."""

from __future__ import annotations

from urllib.parse import urlsplit

from playwright.sync_api import Locator

from tests.browser.view import View


def links(view: View) -> Locator:
    """The links of the navigation."""
    return view.page.locator("[data-testid=stSidebar] [data-testid=stPageLink-NavLink]")


def pages(view: View) -> list[str]:
    """The paths that the navigation offers; that of the first page is empty."""
    found = links(view).evaluate_all("es => es.map(e => e.href)")
    return [urlsplit(str(href)).path.strip("/") for href in found]


def go_to(view: View, page: int | str) -> View:
    """Clicks a link of the navigation, by its place or its path."""
    place = page if isinstance(page, int) else pages(view).index(page)
    return view.click(links(view).nth(place))

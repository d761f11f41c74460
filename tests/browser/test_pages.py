"""Every page of every kind of source: something is drawn, nothing is wrong."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.browser.conftest import PICTURES, Site
from tests.browser.view import View, go_to, pages

LOOKED_AT = ("nvfp4", "ranks")
"""Sources of which every page is opened; tests/explorer draws all kinds, without a browser."""

RECORDINGS = ("overview", "layers", "timeline", "kernels", "conversions", "fallbacks", "ranks",
              "steps", "compare")  # fmt: skip


def look(view: View) -> None:
    """Goes through the pages by the navigation; each has a title and something below it."""
    for path in pages(view):
        go_to(view, path).check()
        view.picture(PICTURES / f"{path or 'overview'}-light-1400.png", whole=True)
        assert view.titles(), view.page.url
        assert "source" in view.state, "the address forgets what is looked at"
        assert len(view.text) > 40, f"{view.page.url} is empty: {view.text}"


@pytest.mark.parametrize("source", LOOKED_AT)
def test_recordings(site: Site, fresh: Callable[..., View], source: str) -> None:
    view = fresh(site.served.url).open(source=site.places[source])
    shown = [path or "overview" for path in pages(view)]
    assert shown == [path for path in RECORDINGS if path != "ranks" or source == "ranks"]
    look(view)


def test_results_of_ab(site: Site, fresh: Callable[..., View]) -> None:
    view = fresh(site.served.url).open(source=site.places["ab"])
    assert "1.38 x" in view.text
    look(view)


def test_every_page_in_the_dark_on_a_phone(site: Site, fresh: Callable[..., View]) -> None:
    view = fresh(site.served.url, theme="dark", width=390).open(source=0)
    for path in pages(view):
        view.open(path, source=0).check()
        view.picture(PICTURES / f"{path or 'overview'}-dark-390.png", whole=True)
        wide, seen = view.page.evaluate(
            "() => [document.querySelector('[data-testid=stMain]').scrollWidth, innerWidth]"
        )
        assert wide <= seen, f"{path} is wider than the screen"


def test_rows_open_on_a_click_anywhere_and_on_enter(site: Site, fresh: Callable[..., View]) -> None:
    view = fresh(site.served.url).open("kernels", source=site.places["nvfp4"])
    table = view.keyed("rows-kernels").locator("[data-testid=stDataFrame]")
    rows = view.cells(table)
    role = rows[0].index("Role")
    for x in (12, 90, 300, 700):  # the box, and cells of any column
        view.click_row(table, 1, x)
        assert f"({rows[2][role]})" in view.titles()[1]
        view.press("All kernels")
        assert "kernel" not in view.state
    # Sorted by a column, the row is the one that is seen there.
    box = table.locator("canvas").first.bounding_box()
    assert box
    view.page.mouse.click(box["x"] + 60, box["y"] + 17)
    view.wait_until(lambda: view.cells(table)[1:4] != rows[1:4])
    first = view.cells(table)[1]
    view.click_row(table, 0, 300)
    assert f"({first[role]})" in view.titles()[1]
    # The keyboard looks through the table, and opens only with Enter.
    view.press("All kernels")
    view.page.get_by_role("button", name="Fullscreen").first.focus()
    for key in ("Tab", "ArrowDown", "ArrowDown"):
        view.page.keyboard.press(key)
    view.settle()
    assert "kernel" not in view.state
    view.act(lambda: view.page.keyboard.press("Enter"))
    assert f"({rows[3][role]})" in view.titles()[1]
    view.check()


def test_a_kernel_leads_to_its_place_in_time(site: Site, fresh: Callable[..., View]) -> None:
    view = fresh(site.served.url).open("kernels", source=site.places["nvfp4"], kernel=0)
    view.click(view.page.get_by_role("link", name="In the Timeline"))
    assert view.path == "timeline"
    assert view.state.keys() & {"call", "kernel"}
    view.check()

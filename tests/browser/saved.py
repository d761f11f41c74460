"""Files that were taken from a page, opened by themselves."""

from __future__ import annotations

from pathlib import Path

from playwright.sync_api import BrowserContext

from tests.browser.hostile import ACTED
from tests.browser.watch import watch


def check_page(context: BrowserContext, path: Path) -> int:
    """A page that was saved draws its figures, asks for nothing and runs nothing foreign.

    Returns:
        How many figures it has drawn.
    """
    page = context.new_page()
    seen = watch(page)
    try:
        page.goto(path.as_uri())
        page.locator(".main-svg").first.wait_for()
        assert not seen.errors, seen.errors[:3]
        assert not seen.outside, seen.outside[:3]
        acted = page.evaluate(ACTED)
        assert not acted, acted[:3]
        return page.locator(".js-plotly-plot").count()
    finally:
        page.close()


def png_size(path: Path) -> tuple[int, int]:
    """Width and height of a picture."""
    head = path.read_bytes()[:24]
    assert head.startswith(b"\x89PNG\r\n\x1a\n"), head
    return int.from_bytes(head[16:20]), int.from_bytes(head[20:24])

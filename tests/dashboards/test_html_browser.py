"""The pages as a browser shows them: offline, on a screen, on a phone, on paper.

A page is opened from its file with the network cut off.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import spark_prof
from spark_prof.dashboards.render import RENDERERS
from tests.browser import chromium

from .documents import DOCUMENTS, draw
from .page import contrast
from .sample import HOSTILE_NAME, SAMPLES

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(
        chromium.found() is None,
        reason="there is no chromium on the path; apt-get install chromium",
    ),
]

_DATA = Path(__file__).parents[1] / "data"
_RECORDING = _DATA / "code-h100" / "qwen3-30b-a3b-nvfp4"
_LONG_NAMES = _DATA / "code-h100" / "dense-fp8-token"
"""Of some kernels even the short names are folded."""
_DESK, _BROAD, _PHONE = (1100, 800), (1600, 900), (390, 844)
# A4 less the margins of the style sheet, in CSS pixels.
_PAPER = (703, 1017)

_BEYOND = """() => {
  const right = document.documentElement.clientWidth + 0.5;
  const scrolls = (one) => one.closest('.wide, nav, .hoverlayer, .gl-container');
  return [...document.querySelectorAll('body *')]
    .filter((one) => one.getBoundingClientRect().right > right && !scrolls(one))
    .map((one) => `${one.tagName}.${one.className} ${one.textContent.slice(0, 60)}`);
}"""
_CUT = """() =>
  [...document.querySelectorAll('main, section, .wide, table, td, th, li, p, .chart')]
  .filter((one) => one.scrollWidth > one.clientWidth + 1)
  .map((one) => `${one.tagName}.${one.className} ${one.textContent.slice(0, 60)}`)"""
_CLOSED = "document.querySelectorAll('table:not(.broad) details:not([open])').length"
_TEXTS = """() => [...document.querySelectorAll('.chart .main-svg text')]
  .filter((one) => one.textContent.trim() && !one.closest('.hoverlayer'))
  .map((one) => [one.textContent, getComputedStyle(one).fill])"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    path = chromium.found()
    assert path
    with chromium.chromium(path) as running:
        yield running


@pytest.fixture
def opened(browser: Any, tmp_path: Path) -> Callable[..., Any]:
    """Opens a page and closes it; it must have loaded nothing and complained of nothing."""

    @contextmanager
    def open_page(
        drawn: str, size: tuple[int, int] = _DESK, scheme: str = "light"
    ) -> Iterator[Any]:
        path = tmp_path / "report.html"
        path.write_text(drawn, encoding="utf-8")
        width, height = size
        context = browser.new_context(
            viewport={"width": width, "height": height},
            color_scheme=scheme,
            offline=True,
            is_mobile=size == _PHONE,
            has_touch=size == _PHONE,
        )
        page = context.new_page()
        said: list[str] = []
        page.on("console", lambda message: said.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: said.append(f"error: {error}"))
        page.on("dialog", lambda dialog: (said.append("a dialog"), dialog.dismiss()))
        page.on("request", lambda request: said.append(request.url))
        page.add_init_script(
            "addEventListener('securitypolicyviolation', (e) => console.error(e.violatedDirective))"
        )
        page.goto(path.as_uri())
        page.wait_for_load_state("load")
        yield page
        context.close()
        assert said == [path.as_uri()]

    return open_page


@cache
def _recorded(recording: Path = _RECORDING) -> str:
    return RENDERERS["html"](spark_prof.report(recording))


def _sections(drawn: str) -> list[str]:
    return re.findall(r"<section id=\"([^\"]+)\"", drawn)


@pytest.mark.parametrize("size", [_DESK, _BROAD, _PHONE], ids=["desk", "broad", "phone"])
def test_a_recording_is_shown_whole(opened: Any, size: tuple[int, int]) -> None:
    with opened(_recorded(), size) as page:
        assert page.evaluate(_BEYOND) == []
        assert page.evaluate("document.documentElement.scrollWidth") <= size[0]
        figures = page.locator(".js-plotly-plot .main-svg").all()
        assert len(figures) >= 3
        assert all(figure.bounding_box()["width"] > 200 for figure in figures)


def test_a_phone_shows_records_instead_of_wide_tables(opened: Any) -> None:
    with opened(_recorded(), _PHONE) as page:
        assert page.locator("table.records").count() > 5
        for table in page.locator("table.records").all():
            assert table.bounding_box()["width"] <= _PHONE[0]
        sizes = page.evaluate(
            "() => [...document.querySelectorAll('td, p, li, dd, dt, a')]"
            ".map((one) => parseFloat(getComputedStyle(one).fontSize))"
        )
        assert min(sizes) >= 11.9


def test_the_contents_lead_to_every_section(opened: Any) -> None:
    with opened(_recorded(), _DESK) as page:
        assert [link.get_attribute("href") for link in page.locator("nav a").all()] == [
            f"#{name}" for name in _sections(_recorded())
        ]
        page.locator("nav a").nth(2).click()
        heading = page.locator(f"#{_sections(_recorded())[2]} h2").bounding_box()
        bar = page.locator("nav").bounding_box()
        # What is linked to is not hidden behind the contents.
        assert bar["height"] <= heading["y"] < 200


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_texts_of_figures_can_be_read(opened: Any, scheme: str) -> None:
    with opened(_recorded(), scheme=scheme) as page:
        behind = _hex(page.evaluate("getComputedStyle(document.body).backgroundColor"))
        texts = page.evaluate(_TEXTS)
        assert len(texts) > 30
        for text, colour in texts:
            assert contrast(_hex(colour), behind) >= 4.5, text


def test_paper_has_every_section_and_nothing_cut(opened: Any) -> None:
    with opened(_recorded(), scheme="dark") as page:
        printed = page.pdf(format="A4", outline=True, tagged=True)
        titles = page.locator("h2").all_inner_texts()
    # The outline of a tagged PDF names its headings, in the clear.
    outlined = re.findall(rb"/Title \(((?:[^()\\]|\\.)*)\)", printed)
    assert set(titles) <= {re.sub(rb"\\(.)", rb"\1", title).decode("latin-1") for title in outlined}
    with opened(_recorded(_LONG_NAMES), _PAPER, scheme="dark") as page:
        page.emulate_media(media="print", color_scheme="dark")
        page.evaluate("dispatchEvent(new Event('beforeprint'))")
        page.wait_for_timeout(300)
        assert page.evaluate(_CUT) == []
        assert page.evaluate(_CLOSED) == 0
        assert page.evaluate("getComputedStyle(document.body).color") == "rgb(28, 32, 36)"
        for figure in page.locator(".chart").all():
            box = figure.bounding_box()
            assert box["width"] <= _PAPER[0]
            assert box["height"] <= _PAPER[1]
        page.evaluate("dispatchEvent(new Event('afterprint'))")
        assert page.evaluate(_CLOSED) > 0


@pytest.mark.parametrize("text", ["endless", "wide"])
@pytest.mark.parametrize("document", DOCUMENTS)
def test_no_text_breaks_a_page(opened: Any, document: str, text: str) -> None:
    with opened(draw(document, text, "html")) as page:
        assert page.locator("main img, main a, main iframe, main object").count() == 0
        for width, height in (_DESK, _PHONE):
            page.set_viewport_size({"width": width, "height": height})
            if page.locator(".js-plotly-plot").count():  # which is drawn anew a moment later
                page.wait_for_timeout(300)
            assert page.evaluate(_BEYOND) == []


def test_hover_texts_show_hostile_names_as_texts(opened: Any) -> None:
    with opened(RENDERERS["html"](SAMPLES["hostile"])) as page:
        page.locator("#chart-components .point path").last.hover(force=True)
        page.wait_for_timeout(300)
        hovered = " ".join(page.locator("#chart-components .hoverlayer text").all_text_contents())
        shown = " ".join(page.locator("#chart-components .ytick text").all_text_contents())
        assert "<script>" in hovered + shown
        assert HOSTILE_NAME[:8] in hovered + shown
        assert page.locator(".chart svg a").count() == 0
        for image in page.locator(".chart svg image").all():
            # Plotly draws the cells of a heat map as one picture.
            assert image.evaluate("(one) => one.href.baseVal").startswith("data:image/png")


def _hex(colour: str) -> str:
    return "#" + "".join(f"{int(part):02x}" for part in re.findall(r"\d+", colour)[:3])

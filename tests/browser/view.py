"""One page of the explorer, open in the browser: what is on it, what can be clicked."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

from playwright.sync_api import Download, Locator, Page, expect
from playwright.sync_api import TimeoutError as NothingCame

from tests.browser.watch import Watch, watch

LARGEST_MESSAGE = 5_000_000
"""Bytes that a message to the browser may have."""

_JOINER = "\u2060"
"""Invisible; with it the explorer keeps Markdown from reading what is none."""

_SECONDS = 120
"""A page that is busy for so long stays it; beside much else one may take a minute."""

_DOWNLOAD_MS = 15_000
_HIGHEST = 6000
_STILL_MS = 80
"""A page that asks for nothing for so long has what it wanted."""

_DRAWN = """() => {
    const app = document.querySelector('[data-testid=stApp]');
    if (!app || app.dataset.testScriptState !== 'notRunning') return false;
    if (document.querySelector('[data-testid=stSkeleton], [data-testid=stSpinner]')) return false;
    const shown = (e) => e.getClientRects().length > 0 && !e.closest('details:not([open])');
    const charts = [...document.querySelectorAll('[data-testid=stPlotlyChart]')].filter(shown);
    if (!charts.every((e) => e.querySelector('.main-svg'))) return false;
    const tables = [...document.querySelectorAll('[data-testid=stDataFrame]')].filter(shown);
    return tables.every((e) => e.querySelector('canvas'));
}"""

_POINT = """(plot, [trace, place]) => {
    const full = plot._fullData.filter((t) => t.visible === true);
    const one = full[trace], box = plot.getBoundingClientRect();
    if (one.type === 'bar') {
        const bars = full.filter((t) => t.type === 'bar').indexOf(one);
        const drawn = plot.querySelectorAll('.trace.bars')[bars].querySelectorAll('.point');
        const bar = drawn[place].getBoundingClientRect();
        return [bar.left + bar.width / 2, bar.top + bar.height / 2];
    }
    const axis = (letter) => plot._fullLayout[
        (one[letter + 'axis'] || letter).replace(/^([xy])(\\d*)$/, '$1axis$2')];
    const x = axis('x'), y = axis('y');
    return [box.left + x._offset + x.d2p(one.x[place]),
            box.top + y._offset + y.d2p(one.y[place])];
}"""

_HOVERED = """plot => new Promise(found => {
    let looks = 0;
    const look = () => {
        const there = Boolean(plot._hoverdata?.length);
        there || ++looks > 100 ? found(there) : setTimeout(look, 10);
    };
    look();
})"""

_MOVES = 20
"""Of the mouse onto a mark, a second each: a figure that is being drawn does not notice one."""


class View:
    """A page in the browser, watched from before it loads anything.

    Args:
        page: an empty one.
        url: of the server.
    """

    def __init__(self, page: Page, url: str) -> None:
        self.page = page
        self.url = url
        self.watch: Watch = watch(page)
        page.set_default_timeout(1000 * _SECONDS)
        self.glance_ms = 30.0
        """Between two looks whether the picture is there; looking takes time from who draws it."""
        self.settled = 0.0
        """When the last picture was there, by `time.perf_counter`."""
        self.took = 0.0
        """Seconds from the last action to its picture."""

    def open(self, path: str = "", **state: object) -> View:
        """Opens an address of the explorer and waits for its picture."""
        return self.go(f"{self.url}/{path}?{urlencode(state)}".rstrip("?"))

    def go(self, url: str) -> View:
        """Opens an address and waits for its picture."""
        return self.act(lambda: self.page.goto(url))

    def settle(self, seconds: float = _SECONDS, runs: int = 0) -> View:
        """Waits until every run has ended and what it sent is drawn.

        Args:
            seconds: after which it is an error.
            runs: so many runs must have ended since the page was made.
        """
        end = time.perf_counter() + seconds
        self.settled = time.perf_counter()
        while time.perf_counter() - self.settled < _STILL_MS / 1000:
            assert time.perf_counter() < end, f"still busy after {seconds} s: {self.page.url}"
            self.page.wait_for_timeout(self.glance_ms)
            ended = self.watch.idle and self.watch.finished >= runs
            if not (ended and self.page.evaluate(_DRAWN)):
                self.settled = time.perf_counter()
        return self

    def wait_until(self, there: Callable[[], bool], seconds: float = _SECONDS) -> View:
        """Waits for what comes by itself."""
        end = time.perf_counter() + seconds
        while not there():
            assert time.perf_counter() < end, f"it has not come after {seconds} s: {self.page.url}"
            self.page.wait_for_timeout(50)
        return self.settle()

    def act(self, action: Callable[[], object]) -> View:
        """Does what makes the script run again, and waits for the new picture."""
        before = self.watch.finished
        begin = time.perf_counter()
        action()
        self.settle(runs=before + 1)
        self.took = self.settled - begin
        return self

    def click(self, target: Locator) -> View:
        """Clicks what makes the script run again."""
        target.scroll_into_view_if_needed()
        return self.act(target.click)

    @property
    def path(self) -> str:
        """The page that the address names."""
        return urlsplit(self.page.url).path.strip("/")

    @property
    def state(self) -> dict[str, str]:
        """What the address says beside the page."""
        return dict(parse_qsl(urlsplit(self.page.url).query))

    @property
    def text(self) -> str:
        """Everything on the page that is text, without the cells of tables."""
        text = str(self.page.locator("[data-testid=stMain]").inner_text())
        return text.replace(_JOINER, "")

    def keyed(self, name: str) -> Locator:
        """The element that the explorer drew under this name."""
        return self.page.locator(f".st-key-{name}")

    def names(self) -> list[str]:
        """Of all elements that have one, in their order."""
        classes = "es => es.flatMap(e => [...e.classList].filter(c => c.startsWith('st-key-')))"
        return [c.removeprefix("st-key-") for c in self._all("[class*=st-key-]", classes)]

    def titles(self) -> list[str]:
        """The headings, in their order."""
        texts = self._all("[data-testid=stHeading]", "es => es.map(e => e.innerText)")
        return [str(text).replace(_JOINER, "").strip() for text in texts]

    def _all(self, selector: str, script: str) -> list[Any]:
        return list(self.page.locator(selector).evaluate_all(script))

    def tables(self) -> dict[str, Locator]:
        """Every table by the name of its CSV, in their order."""
        names = [name.removesuffix("-csv") for name in self.names() if name.endswith("-csv")]
        drawn = self.page.locator("[data-testid=stDataFrame]")
        assert drawn.count() == len(names), f"a table of {self.page.url} is no CSV"
        return {name: drawn.nth(place) for place, name in enumerate(names)}

    def figures(self) -> list[str]:
        """The names of all figures, in their order."""
        names = [name.removesuffix("-html") for name in self.names() if name.endswith("-html")]
        drawn = self.page.locator("[data-testid=stPlotlyChart]")
        assert drawn.count() == len(names), f"a figure of {self.page.url} is no file"
        return names

    def cells(self, table: Locator) -> list[list[str]]:
        """The titles and the rows of a table that are in sight, as a screen reader has them."""
        read = "t => [...t.rows].map(r => [...r.cells].map(c => c.textContent))"
        grid = table.locator("canvas table[role=grid]").first
        return [[str(cell) for cell in row] for row in grid.evaluate(read)]

    def click_row(self, table: Locator, row: int, x: float = 150) -> View:
        """Clicks a cell of a row of a table, so many pixels from its left edge; that opens it."""
        table.scroll_into_view_if_needed()
        box = table.locator("canvas").first.bounding_box()
        assert box
        y = box["y"] + 35 * (row + 1) + 17
        return self.act(lambda: self.page.mouse.click(box["x"] + x, y))

    def plot(self, name: str) -> Locator:
        """The drawn figure of this name."""
        return self.keyed(name).locator(".js-plotly-plot").first

    def traces(self, name: str) -> list[dict[str, Any]]:
        """The data of a drawn figure, as plotly has it in the browser."""
        read = """p => JSON.stringify((p._fullData || []).map((t) => ({
            type: t.type, name: t.name, mode: t.mode,
            x: t.x && Array.from(t.x), y: t.y && Array.from(t.y),
            text: t.text, customdata: t.customdata && Array.from(t.customdata)})))"""
        return list(json.loads(self.plot(name).evaluate(read)))

    def click_point(self, name: str, trace: int = 0, place: int = 0) -> View:
        """Clicks a mark of a figure."""
        plot = self.plot(name)
        plot.scroll_into_view_if_needed()
        # Plotly looks what is below the mouse a moment later, and a click takes what it found.
        for move in range(_MOVES):
            x, y = plot.evaluate(_POINT, [trace, place])
            self.page.mouse.move(x + move % 2, y)
            if plot.evaluate(_HOVERED):
                break
        return self.act(lambda: self.page.mouse.click(x, y))

    def press(self, label: str) -> View:
        """Clicks the button with exactly this label."""
        return self.click(self.page.get_by_role("button", name=label, exact=True))

    def choose(self, name: str, option: str) -> View:
        """Chooses from a list that the explorer drew under this name."""
        box = self.keyed(f"choice-{name}").locator("input")
        box.scroll_into_view_if_needed()
        box.fill(option)
        return self.act(lambda: box.press("Enter"))

    def write(self, name: str, text: str) -> View:
        """Writes into the field of this name."""
        field = self.keyed(name).locator("input")
        field.fill(text)
        return self.act(lambda: field.press("Enter"))

    def download(self, button: Locator, folder: Path) -> Path:
        """Clicks a button that downloads; returns the file.

        Streamlit may drop what a page asks for while another page of the server goes: a person
        would click once more.
        """
        try:
            found = self._downloaded(button)
        except NothingCame:
            found = self._downloaded(button)
        path = folder / found.suggested_filename
        found.save_as(path)
        return path

    def _downloaded(self, button: Locator) -> Download:
        with self.page.expect_download(timeout=_DOWNLOAD_MS) as waiting:
            button.click()
        return waiting.value

    def picture_of(self, name: str, folder: Path) -> Path:
        """Takes a figure along as a picture; returns the file."""
        plot = self.plot(name)
        plot.scroll_into_view_if_needed()
        plot.hover()
        return self.download(plot.locator("[data-title*=PNG]"), folder)

    def unfold(self) -> View:
        """Opens what is folded together."""
        for folded in self.page.locator("[data-testid=stExpander] details").all():
            if folded.get_attribute("open") is None:
                folded.locator("summary").click()
                expect(folded).to_have_attribute("open", "", timeout=1000 * _SECONDS)
        return self.settle()

    def picture(self, path: Path, *, whole: bool = False) -> None:
        """Saves what is seen, or the whole page."""
        path.parent.mkdir(parents=True, exist_ok=True)
        size = self.page.viewport_size
        assert size
        if whole:
            main = self.page.locator("[data-testid=stMain]")
            high = int(main.evaluate("e => e.scrollHeight"))
            self.page.set_viewport_size({"width": size["width"], "height": min(high, _HIGHEST)})
            self.settle()
        self.page.screenshot(path=path)
        self.page.set_viewport_size(size)

    def check(self, allowed: Sequence[str] = ()) -> None:
        """Nothing is wrong with the page.

        Args:
            allowed: parts of console lines that this page may have.
        """
        errors = [e for e in self.watch.errors if not any(part in e for part in allowed)]
        assert not errors, f"{self.page.url}: {errors[:5]}"
        assert not self.watch.outside, f"{self.page.url} asks {self.watch.outside[:5]}"
        boxes = self.page.locator("[data-testid=stException], [data-testid=stConnectionStatus]")
        shown = boxes.all_inner_texts()
        assert not shown, f"{self.page.url}: {shown}"
        for fault in ("Traceback (most recent call last)", "a fault of spark-prof's own"):
            assert fault not in self.text, self.text[-2000:]
        assert self.watch.largest <= LARGEST_MESSAGE, f"a message of {self.watch.largest:,} bytes"


def links(view: View) -> Locator:
    """The links of the navigation."""
    return view.page.locator("[data-testid=stSidebar] [data-testid=stPageLink-NavLink]")


def pages(view: View) -> list[str]:
    """The paths that the navigation offers; that of the first page is empty."""
    found = links(view).evaluate_all("es => es.map(e => e.href)")
    return [urlsplit(str(href)).path.strip("/") for href in found]


def go_to(view: View, page: str) -> View:
    """Clicks the link of the navigation that leads to a path."""
    return view.click(links(view).nth(pages(view).index(page)))

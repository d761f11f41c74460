"""The pictures of the documentation, taken in Chromium from recordings that are in the repository.

After a change of the report or of the explorer take them anew, look at them and commit them:

    python -m tests.docs.pictures          # all
    python -m tests.docs.pictures explore-layers explore-compare
"""

from __future__ import annotations

import io
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from html import escape
from pathlib import Path

import numpy as np
from PIL import Image
from playwright.sync_api import Browser, Page

import spark_prof
from spark_prof.dashboards.render import RENDERERS
from spark_prof.datasets.prepared import prepare
from tests.browser import chromium
from tests.browser.served import EXPLORE, Served, let_in
from tests.browser.view import View
from tests.docs.pages import DOCS, ROOT, with_source

FOLDER = DOCS / "images"
SIZE = (1440, 900)
LARGEST = 200_000
"""Bytes that a picture may have."""

_COLOURS = 128
_SHARED = "tests/data/code-h100"
_PAPER = (
    "background: #fff; color: #1f2328; padding: 24px 32px; margin: 0; font: 13px/1.35 monospace"
)


@dataclass(frozen=True)
class Shot:
    """A view of the explorer.

    Attributes:
        sources: what is opened; the page shows the first, and holds the second against it.
        page: its path; empty for the first one.
        top: what is scrolled to, as a CSS selector; empty for the page's beginning.
        kernel: what the chosen kernel's name contains; of several the one with most calls.
        state: more of the address.
        waits_for: the text that the frame of Perfetto's UI shows when it is ready.
    """

    sources: tuple[str, ...]
    page: str = ""
    top: str = ""
    kernel: str = ""
    state: Mapping[str, str] = field(default_factory=dict)
    waits_for: str = ""


QWEN = (f"{_SHARED}/qwen3-30b-a3b-nvfp4",)
FORMATS = (f"{_SHARED}/dense-fp8-block", f"{_SHARED}/dense-nvfp4")
MARLIN = "marlin_moe_wna16::Marlin"
SHOTS = {
    "explore-overview": Shot(QWEN),
    "explore-layers": Shot(QWEN, "layers", state={"layer": "3", "component": "experts"}),
    "explore-kernels": Shot(QWEN, "kernels", state={"component": "experts"}),
    "explore-kernel": Shot(
        QWEN, "kernels", top="[data-testid=stHeading]:has-text('marlin')", kernel=MARLIN
    ),
    "explore-timeline": Shot(
        QWEN, "timeline", top="iframe", kernel=MARLIN, waits_for="registers per thread"
    ),
    "explore-compare": Shot(FORMATS, "compare"),
    "explore-ab": Shot(("benchmarks/results/ab/qwen3-30b-a3b-nvfp4.json",)),
}
REPORTS = ("report-text", "report-html")


def _save(page: Page, name: str, size: tuple[int, int] = SIZE) -> None:
    """What the page shows, in few colours, so that the file is small."""
    page.set_viewport_size({"width": size[0], "height": size[1]})
    picture = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
    few = picture.quantize(_COLOURS, dither=Image.Dither.NONE)
    path = FOLDER / f"{name}.png"
    few.save(path, optimize=True)
    written = path.stat().st_size
    assert written < LARGEST, f"{path.name} has {written:,} bytes"
    print(f"{path.relative_to(ROOT)}: {written / 1e3:.0f} kB")


def _report(browser: Browser, name: str) -> None:
    """The terminal's report as it is printed, or the first screen of the HTML."""
    report = with_source(spark_prof.report(ROOT / QWEN[0]), QWEN[0])
    page = browser.new_page(viewport={"width": SIZE[0], "height": SIZE[1]})
    if name == "report-html":
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "report.html"
            path.write_text(RENDERERS["html"](report), encoding="utf-8")
            page.goto(path.as_uri())
            page.locator(".js-plotly-plot .main-svg").first.wait_for()
            _save(page, name)
    else:
        command = f"$ spark-prof report {QWEN[0]}\n"
        text = escape(command + RENDERERS["text"](report).rstrip())
        page.set_content(f'<body style="margin: 0"><pre style="{_PAPER}">{text}</pre></body>')
        box = page.locator("pre").bounding_box()
        assert box
        _save(page, name, (900, int(box["height"]) + 1))
    page.close()


@contextmanager
def _explored(browser: Browser, sources: Sequence[str]) -> Iterator[View]:
    """The explorer with these sources, in a browser that has never been there."""
    paths = [str(ROOT / source) for source in sources]
    context = browser.new_context(viewport={"width": SIZE[0], "height": SIZE[1]})
    with tempfile.TemporaryDirectory() as folder, Served([*EXPLORE, *paths], Path(folder)) as site:
        let_in(context, site.url)
        yield View(context.new_page(), site.url)
        context.close()


def _explorer(view: View, name: str, shot: Shot) -> None:
    state = {"source": "0", **shot.state}
    if len(shot.sources) > 1:
        state["other"] = "1"
    if shot.kernel:
        kernels = prepare(str(ROOT / shot.sources[0])).kernels
        calls = np.bincount(kernels.name, minlength=len(kernels.names))
        named = [place for place, name in enumerate(kernels.names) if shot.kernel in name]
        state["kernel"] = str(max(named, key=lambda place: int(calls[place])))
    view.open(shot.page, **state)
    if shot.waits_for:
        view.wait_until(
            lambda: any(
                shot.waits_for in frame.inner_text("body")
                for frame in view.page.frames
                if "/perfetto/" in frame.url
            )
        )
    view.settle().check()
    if shot.top:
        found = view.page.locator(shot.top).first
        found.evaluate("e => { e.style.scrollMarginTop = '70px'; e.scrollIntoView() }")
        view.settle()
    _save(view.page, name)


def take(names: Sequence[str]) -> None:
    """Takes the pictures of these names; all are in `REPORTS` and `SHOTS`."""
    path = chromium.found()
    assert path, "there is no chromium on the path; apt-get install chromium"
    with chromium.chromium(path) as browser:
        for name in names:
            if name in REPORTS:
                _report(browser, name)
        for sources in dict.fromkeys(SHOTS[name].sources for name in names if name in SHOTS):
            with _explored(browser, sources) as view:
                for name in names:
                    if name in SHOTS and SHOTS[name].sources == sources:
                        _explorer(view, name, SHOTS[name])


if __name__ == "__main__":
    wanted = sys.argv[1:] or [*REPORTS, *SHOTS]
    unknown = set(wanted) - {*REPORTS, *SHOTS}
    if unknown:
        sys.exit(f"no such picture: {', '.join(sorted(unknown))}; there are {[*REPORTS, *SHOTS]}")
    take(wanted)

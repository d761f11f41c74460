"""From a slow model to its first cause: the clicks of somebody who knows nothing of tracing."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.browser.conftest import Site
from tests.browser.sources import report_of
from tests.browser.view import View, go_to

Fresh = Callable[..., View]

_MAIN = "document.querySelector('[data-testid=stMain]')"
_SLOWLY = """{
    const add = WebSocket.prototype.addEventListener;
    WebSocket.prototype.addEventListener = function (kind, take, ...rest) {
        if (kind !== 'message') return add.call(this, kind, take, ...rest);
        let last = Promise.resolve();
        const pause = () => window.slowly && new Promise((go) => setTimeout(go, 40));
        add.call(this, kind, (event) => {
            last = last.then(pause).then(() => take(event));
        }, ...rest);
    };
}"""
"""With `slowly` the browser draws each message of the server, as a busy one may."""


def assert_link_shows_the_same(view: View, fresh: Fresh) -> None:
    """The address of the view, opened by somebody who has never been there."""
    other = fresh(view.url, known=False).go(view.page.url)
    assert other.titles() == view.titles()
    assert other.text == view.text
    assert other.state == view.state
    for name in view.figures():
        assert other.traces(name) == view.traces(name), name


def test_a_command_is_copied_by_a_click_or_by_enter(site: Site, fresh: Fresh) -> None:
    view = fresh(site.served.url).open(source=site.places["nvfp4"])
    view.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    commands = view.page.locator("pre.command")
    for number, act in enumerate((lambda pre: pre.click(), lambda pre: pre.press("Enter"))):
        act(commands.nth(number))
        view.page.wait_for_selector(f"pre.command[data-copied] >> nth={number}")
        copied = view.page.evaluate("navigator.clipboard.readText()")
        assert copied == commands.nth(number).inner_text()
        assert copied.startswith("spark-prof ")


def test_two_minutes(site: Site, fresh: Fresh) -> None:
    report = report_of("nvfp4")
    view = fresh(site.served.url).open(source=site.places["nvfp4"])
    assert view.path == ""
    kept = {"source": str(site.places["nvfp4"])}
    assert "4.76 ms" in view.titles()[1], "the first line says how long a token takes"

    finding = view.keyed("finding-1").inner_text()
    assert report["findings"][1]["text"] in finding
    assert report["findings"][1]["fix"] in finding

    view.click(view.keyed("show-1").locator("button"))
    assert view.path == "kernels"
    kernel = view.state["kernel"]
    assert view.state == kept | {"kernel": kernel, "component": "experts"}
    assert view.titles()[1].startswith("marlin_moe_wna16::Marlin (w")
    assert {"What it is", "Against its lower bound", "Machine code"} <= set(view.titles())
    assert_link_shows_the_same(view, fresh)

    go_to(view, "timeline")
    assert view.state == kept | {"kernel": kernel, "component": "experts"}
    assert "marlin_moe_wna16::Marlin" in view.text, "the kernel is not pointed out"
    assert_link_shows_the_same(view, fresh)

    view.click(view.page.get_by_role("button", name="Median decode step"))
    assert report["steps"]["decode"] > int(view.state["step"]) > 0
    assert view.watch.largest < 1_000_000

    go_to(view, "layers")
    assert "Layer 0 norm: 4.61 us against 3.94 us in 47 layers like it" in view.text
    odd = view.keyed("odd-layers").locator("[data-testid=stDataFrame]")
    assert view.cells(odd)[1][:2] == ["0", "norm"]
    assert "layer 0" in " ".join(view.plot("like-layers").locator("text").all_text_contents())
    view.click_point("layers", trace=1, place=0)
    assert {"layer", "component"} <= view.state.keys()
    assert_link_shows_the_same(view, fresh)

    cell = view.keyed("cell-kernels").locator("[data-testid=stDataFrame]")
    view.click_row(cell, 0)
    assert view.path == "kernels"
    assert view.state["kernel"].isdecimal()
    assert view.state["component"] == "norm"


@pytest.mark.smoke
def test_a_bar_leads_to_what_it_stands_on_and_back(site: Site, fresh: Fresh) -> None:
    view = fresh(site.served.url)
    view.page.add_init_script(_SLOWLY)
    view.open(source=site.places["graphs"])
    bars = view.traces("time-of-a-token")
    trace = next(n for n, bar in enumerate(bars) if bar["type"] == "bar")
    place = next(n for n, data in enumerate(bars[trace]["customdata"]) if data[1] == "experts")
    view.page.set_viewport_size({"width": 1400, "height": 700})
    view.page.evaluate(f"{_MAIN}.scrollTop = 120, window.slowly = true")
    view.click_point("time-of-a-token", trace, place)
    view.wait_until(lambda: view.path == "kernels")
    left = view.page.evaluate("sparkProfPlaces.get('/')")
    view.page.evaluate("window.slowly = false")
    assert left > 0, "where one was is forgotten"
    assert (view.path, view.state["component"]) == ("kernels", "experts")
    assert view.page.evaluate(f"{_MAIN}.scrollTop") == 0, "the page does not begin at its top"
    view.act(view.page.go_back)
    assert view.path == ""
    view.wait_until(lambda: abs(view.page.evaluate(f"{_MAIN}.scrollTop") - left) < 3)
    assert "Overview" in view.titles()
    view.act(view.page.go_forward)
    assert (view.path, view.state["component"]) == ("kernels", "experts")


def test_two_recordings_side_by_side(site: Site, fresh: Fresh) -> None:
    view = fresh(site.served.url).open(
        "compare", source=site.places["dense-nvfp4"], other=site.places["dense-awq"]
    )
    assert "dense-awq" in view.titles()[1]
    assert {"difference", "parts"} <= set(view.names())
    assert_link_shows_the_same(view, fresh)

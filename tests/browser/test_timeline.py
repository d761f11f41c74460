"""The Timeline page with a mouse: clicks and stretches lead where they point."""

from __future__ import annotations

from collections.abc import Callable

from spark_prof.datasets.prepared import prepare
from tests.browser.conftest import PICTURES, Site
from tests.browser.view import View

Explore = Callable[..., View]

_CENTRE = """(plot, [lane, kernel]) => {
    for (const [number, trace] of plot._fullData.entries())
        for (const [place, data] of trace.customdata.entries()) {
            if (data[1] !== lane || (kernel && data[0] < 0)) continue;
            const shown = plot._fullLayout, box = plot.getBoundingClientRect();
            const middle = trace.base[place] + trace.x[place] / 2;
            return [data, box.left + shown.xaxis._offset + shown.xaxis.d2p(middle),
                    box.top + shown.yaxis._offset + shown.yaxis.d2p(trace.y[place])];
        }
}"""
"""The first mark of a lane: its customdata, and where its middle is on the screen."""


def click_mark(view: View, lane: int, *, kernel: bool = False) -> list[int]:
    plot = view.plot_of("timeline-")
    plot.scroll_into_view_if_needed()
    data, x, y = plot.evaluate(_CENTRE, [lane, kernel])
    view.page.mouse.move(x, y)
    view.act(lambda: view.page.mouse.click(x, y))
    return [int(value) for value in data]


def test_from_the_recording_to_a_kernel(explore: Explore, site: Site) -> None:
    view = explore("timeline", "nvfp4")
    step = click_mark(view, 0)
    assert view.state["step"]
    assert "from" not in view.state
    shown = prepare(str(site.paths["nvfp4"]))
    window = shown.steps[shown.steps["step"] == int(view.state["step"])].iloc[0]
    origin = int(shown.kernels.start_ns[0])
    assert (window["begin_ns"] - origin, window["finish_ns"] - origin) == (step[2], step[3])

    view.click(view.page.get_by_role("button", name="Median decode step", exact=True))
    layer = click_mark(view, 1)
    assert (int(view.state["from"]), int(view.state["to"])) == (layer[2], layer[3])
    kernel = click_mark(view, 3, kernel=True)
    assert int(view.state["call"]) == kernel[0]
    name = shown.kernels.names[int(shown.kernels.name[kernel[0]])]
    assert " ".join(name.split()) in " ".join(view.text.split())
    PICTURES.mkdir(parents=True, exist_ok=True)
    view.page.screenshot(path=PICTURES / "timeline.png", full_page=True)
    again = explore("timeline", "nvfp4", **{n: v for n, v in view.state.items() if n != "source"})
    assert " ".join(name.split()) in " ".join(again.text.split())


def test_a_stretch_is_zoomed_into(explore: Explore) -> None:
    view = explore("timeline", "graphs", step=1)
    view.click(view.page.get_by_text("Drag to zoom"))
    plot = view.plot_of("timeline-")
    plot.scroll_into_view_if_needed()
    low, high, left, y = plot.evaluate(
        """p => { const a = p._fullLayout.xaxis, b = p.getBoundingClientRect();
        return [...a.range, b.left + a._offset,
                b.top + p._fullLayout.yaxis._offset + p._fullLayout.yaxis._length / 2]; }"""
    )
    width = plot.evaluate("p => p._fullLayout.xaxis._length")
    view.page.mouse.move(left + width * 0.25, y)
    view.page.mouse.down()
    view.page.mouse.move(left + width * 0.5, y + 3, steps=6)
    view.act(view.page.mouse.up)
    begin, end = int(view.state["from"]), int(view.state["to"])
    assert abs((end - begin) / 1e3 / (high - low) - 0.25) < 0.02


def test_the_kernels_of_the_search_are_reached_by_the_keyboard(explore: Explore) -> None:
    view = explore("timeline", "nvfp4")
    search = view.page.get_by_label("Kernel whose name contains")
    search.fill("marlin_moe")
    view.act(lambda: search.press("Enter"))
    first = int(view.state["call"])
    find = view.page.get_by_role("button", name="Find next call")
    find.focus()
    view.act(lambda: find.press("Enter"))
    assert int(view.state["call"]) > first

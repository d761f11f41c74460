"""The Timeline page: ranges in the address, the ways between them, and what is said of a call."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from streamlit.testing.v1 import AppTest

from spark_prof.analyzers.views.timeline_moves import recorded, typical
from spark_prof.datasets.prepared import Prepared, prepare
from tests.analyzers.ranks.bundles import bundle, parallel
from tests.analyzers.ranks.play import Play
from tests.explorer.framed import DATA, framed, texts

CODE = DATA / "code-h100/qwen3-30b-a3b-nvfp4"
GRAPHS = DATA / "h100-gpt-oss-20b-mxfp4-graphs"
SUMMED = DATA / "proton"


@pytest.fixture(scope="module")
def shown() -> Prepared:
    return prepare(str(CODE))


def timeline(**address: object) -> AppTest:
    return framed([CODE], "timeline", **address)


def address(app: AppTest) -> dict[str, int]:
    known = ("from", "to", "step", "call")
    return {name: int(said(app, name)) for name in known if name in app.query_params}


def said(app: AppTest, name: str) -> str:
    """AppTest gives what a test has set as a text, and what a page has set as a list."""
    found = app.query_params[name]
    return found if isinstance(found, str) else found[-1]


def click(app: AppTest, text: str) -> dict[str, int]:
    (button,) = [button for button in app.button if button.label == text]
    button.click().run()
    assert not app.exception, app.exception[0]
    return address(app)


def figure(app: AppTest) -> dict[str, Any]:
    (chart,) = app.get("plotly_chart")
    found: dict[str, Any] = json.loads(chart.proto.spec)
    return found


def places(app: AppTest) -> list[tuple[int, int, int, int]]:
    """The customdata of every mark."""
    return [tuple(d) for trace in figure(app)["data"] for d in trace["customdata"]]


def chosen(app: AppTest, name: str, selection: Mapping[str, object]) -> dict[str, int]:
    """What the address says after a choice in the figure of this name."""
    app.session_state[name] = {"selection": {"points": [], "box": [], "lasso": []} | selection}
    app.run()
    assert not app.exception, app.exception[0]
    return address(app)


def test_it_begins_with_the_whole_recording(shown: Prepared) -> None:
    app = timeline()
    steps = [place for place in places(app) if place[1] == 0]
    assert len(steps) == len(shown.steps)
    assert "click one to look closer" in texts(app)
    assert f"{len(shown.kernels):,}" in texts(app)


def test_a_step_of_the_address_is_drawn_kernel_by_kernel(shown: Prepared) -> None:
    step = typical(shown.steps, "median")
    assert step is not None
    app = timeline(step=step)
    drawn = [place for place in places(app) if place[0] >= 0]
    own = (shown.kernels.step == step).sum()
    assert own * 0.95 < len(drawn) < own * 1.05
    assert "click one for its details" in texts(app)


def test_ranges_and_steps_follow_each_other() -> None:
    app = timeline()
    assert click(app, "Median decode step").keys() == {"step"}
    step = address(app)["step"]
    assert click(app, "Next step") == {"step": step + 1}
    assert click(app, "Previous step") == {"step": step}
    closer = click(app, "Zoom in 10x")
    assert closer.keys() == {"from", "to"}
    length = closer["to"] - closer["from"]
    later = click(app, "Later")
    assert later == {"from": closer["from"] + length // 2, "to": closer["to"] + length // 2}
    assert click(app, "Earlier") == closer
    wider = click(app, "Zoom out 2x")
    assert wider["to"] - wider["from"] == 2 * length
    assert wider["from"] <= closer["from"] < closer["to"] <= wider["to"]


def test_nobody_gets_out_of_the_recording(shown: Prepared) -> None:
    app = timeline()
    for _ in range(3):
        found = click(app, "Zoom out 10x")
    origin, all_of_it = int(shown.kernels.start_ns[0]), recorded(shown.kernels, shown.steps)
    length = all_of_it.to_ns - all_of_it.from_ns
    assert found["to"] - found["from"] == length
    assert found["from"] + origin <= all_of_it.from_ns < all_of_it.to_ns <= found["to"] + origin
    assert click(app, "Later") == found


@pytest.mark.parametrize(
    "wrong",
    [
        {"from": "nonsense", "to": "1"},
        {"from": 10**30, "to": 10**31},
        {"from": 500, "to": 100},
        {"from": 2**61, "to": 2**62 - 1},
        {"step": 10**9},
        {"step": -4, "call": 10**12},
        {"kernel": 10**9},
        {"call": "<b>"},
    ],
    ids=str,
)
def test_an_address_that_says_nothing_there_is_shows_what_there_is(
    wrong: dict[str, object],
) -> None:
    assert places(timeline(**wrong)) or "from" in wrong


def test_a_click_on_a_step_shows_that_step_and_one_on_a_kernel_its_details(
    shown: Prepared,
) -> None:
    app = timeline()
    origin, whole = int(shown.kernels.start_ns[0]), recorded(shown.kernels, shown.steps)
    name = f"timeline-{whole.from_ns - origin}-{whole.to_ns - origin}"
    mark = next(place for place in places(app) if place[1] == 0 and place[2] > 10**8)
    found = chosen(app, name, {"points": [{"customdata": mark}]})
    assert found.keys() == {"step"}
    window = shown.steps[shown.steps["step"] == found["step"]].iloc[0]
    assert window["begin_ns"] - origin == mark[2]

    kernel = [place for place in places(app) if place[0] >= 0][40]
    name = f"timeline-{mark[2]}-{mark[3]}"
    found = chosen(app, name, {"points": [{"customdata": kernel}]})
    assert found == {"step": found["step"], "call": kernel[0]}
    assert shown.kernels.names[int(shown.kernels.name[kernel[0]])] in texts(app)
    assert "This kernel" in texts(app)
    after = click(app, "The one after it")["call"]
    assert shown.kernels.stream[after] == shown.kernels.stream[kernel[0]]
    assert click(app, "The one before it")["call"] == kernel[0]
    assert "call" not in click(app, "Close")


def test_a_stretch_that_was_dragged_is_the_new_range() -> None:
    app = timeline(**{"from": 100_000_000, "to": 110_000_000})
    found = chosen(app, "timeline-100000000-110000000", {"box": [{"x": [7_500.0, 2_000.0]}]})
    assert found == {"from": 102_000_000, "to": 107_500_000}


def test_a_click_on_a_bin_leads_closer() -> None:
    app = timeline(**{"from": 80_000_000, "to": 120_000_000})
    mark = next(place for place in places(app) if place[0] < 0 and place[1] == 3)
    found = chosen(app, "timeline-80000000-120000000", {"points": [{"customdata": mark}]})
    assert found["from"] <= mark[2] < mark[3] <= found["to"]
    assert found["to"] - found["from"] == max(2_000_000, mark[3] - mark[2])


def test_the_search_goes_from_call_to_call(shown: Prepared) -> None:
    app = timeline()
    seen = []
    for _ in range(3):
        app.text_input[0].set_value("MARLIN_moe")
        seen.append(click(app, "Find next call")["call"])
    assert seen == sorted(set(seen))
    names = [shown.kernels.names[int(shown.kernels.name[call])] for call in seen]
    assert all("marlin_moe" in name for name in names)
    app.text_input[0].set_value("no such <b>kernel</b>")
    click(app, "Find next call")
    assert "No kernel has a name that contains no such <b>kernel</b>." in texts(app)


def test_a_kernel_of_another_page_is_shown_where_it_first_ran(shown: Prepared) -> None:
    name = int(shown.kernels.name[5_000])
    app = timeline(kernel=name)
    assert shown.kernels.names[name] in texts(app)
    assert app.text_input[0].value == shown.kernels.names[name][:500]


def test_a_step_that_another_page_chose_comes_before_an_old_range() -> None:
    app = timeline(**{"from": 0, "to": 1_000_000, "step": 5})
    assert click(app, "Next step") == {"step": 6}


def test_sums_have_no_time_line() -> None:
    source = next(path for path in sorted(SUMMED.iterdir()) if path.suffix == ".hatchet")
    app = framed([source], "timeline")
    assert "nothing tells when one ran" in texts(app)
    assert not app.get("plotly_chart")


def test_other_ranks_are_read_when_they_are_asked_for(tmp_path: Path) -> None:
    hosts = {rank: {"host": "a", "boot": "1"} for rank in range(3)}
    bundle(tmp_path / "ranks", Play(ranks=3), hosts, parallel=parallel(tensor=3))
    app = framed([tmp_path / "ranks"], "timeline")
    lanes = {place[1] for place in places(app)}
    titles = figure(app)["layout"]["yaxis"]["ticktext"]
    assert not any(title.startswith("rank") for title in titles)
    app.multiselect[0].select(2).run()
    assert not app.exception, app.exception[0]
    assert said(app, "ranks") == "2"
    assert figure(app)["layout"]["yaxis"]["ticktext"] == [*titles, "rank 2"]
    more = {place[1] for place in places(app)} - lanes
    assert more == {len(titles)}
    assert all(place[0] < 0 for place in places(app) if place[1] in more)
    app.multiselect[0].unselect(2).run()
    assert "ranks" not in app.query_params

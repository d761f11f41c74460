"""The figures on the pages are those that `spark-prof report --format json` has."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from spark_prof.dashboards.formats import count, microseconds, rate, share
from tests.browser.report import report_of
from tests.browser.view import View

Explore = Callable[..., View]
SOURCES = ("graphs", "nvfp4")


@pytest.fixture(params=SOURCES)
def source(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_overview(explore: Explore, source: str) -> None:
    view, report = explore("", source), report_of(source)
    time = report["steps"]["tpot_us"]["median"]
    assert f"An output token takes {microseconds(time)}, {rate(1e6 / time)} tokens/s" in view.text
    assert share(report["conversions"]["share"]) in view.text
    for number, finding in enumerate(report["findings"][:10]):
        card = view.keyed(f"finding-{number}").inner_text()
        assert finding["text"] in card
        assert microseconds(1000 * finding["ms_per_token"]) in card
    for answer in report["answers"]:
        assert answer["text"] in view.text
        assert answer["evidence"] in view.text
    for note in report["notes"]:
        assert note in view.text
    rows = view.cells(view.tables()["coverage"])[1:]
    for (_, part, *_), name in zip(rows, ("layer", "component", "engine"), strict=True):
        measured = report["coverage"][name]
        assert part in (share(measured), f"{round(100 * measured, 1):g}")
    bars = next(t for t in view.traces("time-of-a-token") if t["type"] == "bar")
    assert len(bars["y"]) > 8


def saved(view: View, name: str, folder: Path) -> list[dict[str, str]]:
    path = view.download(view.keyed(f"{name}-csv").locator("button"), folder)
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_kernels(explore: Explore, source: str, tmp_path: Path) -> None:
    view, report = explore("kernels", source), report_of(source)
    kernels: list[Any] = report["kernels"]
    assert f"{count(len(kernels))} of {count(len(kernels))} kernels" in view.text
    rows = saved(view, "kernels", tmp_path)
    assert len(rows) == len(kernels)
    for row, kernel in zip(rows, kernels, strict=True):
        assert row["Full name"] == " ".join(kernel["name"].split())
        assert float(row["Time, ms"]) == pytest.approx(kernel["us"] / 1000, abs=0.0006)
        assert float(row["Share, %"]) == pytest.approx(100 * kernel["share"], abs=0.006)
        for title, key in (("Component", "component"), ("Engine", "engine"),
                           ("Precision", "precision"), ("Known by", "evidence"),
                           ("Conversion", "conversion")):  # fmt: skip
            assert row[title] == (kernel[key] or ""), (title, kernel)


def test_layers(explore: Explore, source: str, tmp_path: Path) -> None:
    """A cell's mean step, times the steps, over all components: the decode time of the report."""
    view, report = explore("layers", source, of="decode"), report_of(source)
    view.unfold()
    steps = report["steps"]["decode"]
    found: dict[str, float] = {}
    for row in saved(view, "cells", tmp_path):
        found[row["Component"]] = found.get(row["Component"], 0.0) + float(row["Mean, us"])
    wanted = {part["name"]: part["decode_us_per_step"] for part in report["components"]}
    assert found.keys() == {name for name, us in wanted.items() if us}
    for name, us in found.items():
        assert us == pytest.approx(wanted[name], rel=1e-3, abs=0.05), (name, steps)


def test_conversions(explore: Explore, source: str) -> None:
    view, report = explore("conversions", source), report_of(source)
    assert microseconds(report["conversions"]["us_per_token"]) in view.text
    assert share(report["conversions"]["share"]) in view.text


def test_steps(explore: Explore, source: str, tmp_path: Path) -> None:
    view, report = explore("steps", source), report_of(source)
    drawn = [y for trace in view.traces("steps-in-order") for y in trace["y"] or []]
    assert len([y for y in drawn if y is not None]) >= report["steps"]["count"]
    rows = saved(view, "steps", tmp_path)
    (decode,) = (row for row in rows if "Decode step" in row.values())
    assert decode["Median"] == microseconds(report["steps"]["decode_us"]["median"])
    assert decode["99th percentile"] == microseconds(report["steps"]["decode_us"]["p99"])

"""The JSON keys that other people's scripts read."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import numpy
import pytest

from spark_prof.dashboards.render import RENDERERS

from .sample import SAMPLES

_SPREAD = {"median", "p99", "mean"}


def _read(sample: str) -> dict[str, Any]:
    def refuse(constant: str) -> None:
        pytest.fail(f"{constant} is no JSON")

    document: dict[str, Any] = json.loads(RENDERERS["json"](SAMPLES[sample]), parse_constant=refuse)
    return document


def test_says_what_the_report_says() -> None:
    report, document = SAMPLES["mixture_of_experts"], _read("mixture_of_experts")
    whole = report.books[0]
    assert document["time"]["sum_us"] == pytest.approx(whole.kernels_us)
    assert document["time"]["union_us"] == pytest.approx(whole.union_us)
    busy = whole.kernels_us + whole.copies_us - whole.overlap_us
    assert document["time"]["busy_us"] == pytest.approx(busy)
    assert document["time"]["wall_us"] == pytest.approx(report.wall_us)
    assert sum(row["us"] for row in document["components"]) == pytest.approx(whole.kernels_us)
    assert sum(row["us"] for row in document["layers"]) == pytest.approx(whole.kernels_us)
    assert {row["layer"] for row in document["layers"]} == {None, 0, 1, 2}
    assert [book["phase"] for book in document["books"]] == ["all", "prefill", "decode", "mixed"]


def test_sums_without_times_are_null() -> None:
    document = _read("sums")
    assert document["time"]["sum_us"] > 0
    assert {document["time"][name] for name in ("union_us", "wall_us", "gap_us", "step_us")} == {
        None
    }
    assert document["steps"]["unknown_us"] == dict.fromkeys(_SPREAD)


def test_a_figure_that_does_not_exist_is_null() -> None:
    document = _read("nothing")
    assert document["coverage"]["layer"] is None
    assert document["time"]["union_us"] is None
    assert document["time"]["sum_us"] == 0


def test_takes_figures_of_numpy() -> None:
    report = replace(SAMPLES["almost_empty"], wall_us=numpy.float32(math.inf))
    report = replace(report, steps=replace(report.steps, count=numpy.int64(3)))
    document = json.loads(RENDERERS["json"](report))
    assert document["steps"]["count"] == 3
    assert document["time"]["wall_us"] is None

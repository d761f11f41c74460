"""The JSON keys that other people's scripts read."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import numpy
import pytest

from spark_prof.dashboards.render import RENDERERS
from tests.rows import each_row

from .sample import HOSTILE_NAME, SAMPLES

_SPREAD = {"median", "p99", "mean"}
_KERNEL = {
    "name", "calls", "us", "share", "component", "engine", "precision", "evidence",
    "conversion",
}  # fmt: skip


def _read(sample: str) -> dict[str, Any]:
    def refuse(constant: str) -> None:
        pytest.fail(f"{constant} is no JSON")

    document: dict[str, Any] = json.loads(RENDERERS["json"](SAMPLES[sample]), parse_constant=refuse)
    return document


@each_row("sample", SAMPLES)
def test_has_the_keys_of_the_contract(sample: str) -> None:
    document = _read(sample)
    assert document["schema"] == 1
    assert set(document) >= {
        "gpu", "steps", "time", "books", "coverage", "components", "layers", "kernels",
        "conversions", "modules", "findings", "ranks", "run", "notes",
    }  # fmt: skip
    assert set(document["gpu"]) == {"name", "compute_capability", "vendor", "clocks"}
    assert set(document["steps"]) >= {
        "count", "prefill", "decode", "mixed", "decode_us", "tokens", "scheduled_tokens",
        "prompt_tokens", "prefill_us", "mixed_us", "tpot_us", "host_gap_us",
    }  # fmt: skip
    assert set(document["steps"]["decode_us"]) == _SPREAD
    for name in ("prefill_us", "mixed_us", "tpot_us", "host_gap_us"):
        assert document["steps"][name] is None or set(document["steps"][name]) == _SPREAD
    assert set(document["time"]) == {
        "sum_us", "union_us", "wall_us", "gap_us", "overlap_us", "step_us", "residual_us",
        "residual_percent", "engine_us", "busy_us", "copies_us",
    }  # fmt: skip
    assert set(document["coverage"]) == {
        "layer", "component", "engine", "unplaced_us", "placed", "proven", "derived",
        "guessed", "unknown",
    }  # fmt: skip
    assert set(document["copies"]) == {"us", "bytes", "share", "items"}
    for row in document["copies"]["items"]:
        assert set(row) == {"name", "kind", "calls", "us", "bytes"}
    assert set(document["conversions"]) >= {"us", "share", "items"}
    for row in document["components"]:
        assert set(row) >= {"name", "us", "share", "kernels", "prefill_us"}
    for row in document["layers"]:
        assert set(row) == {"layer", "component", "us", "kernels", "basis"}
    for row in document["kernels"] + document["conversions"]["items"]:
        assert set(row) >= _KERNEL
    for found in document["findings"]:
        assert set(found) >= {"id", "ms_per_token", "text", "fix"}


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


def test_what_watching_cost() -> None:
    first, second = _read("deep")["overhead"]
    assert first == {
        "batch_size": 1, "ratio": 1.0432, "lowest": 1.0391, "highest": 1.0514, "stretches": 12,
        "watched_us": 5216.0, "timed_us": 5000.0, "run_ratio": 1.0089,
    }  # fmt: skip
    assert second["batch_size"] == 8
    assert _read("mixture_of_experts")["overhead"] == []


def test_ranges_of_the_program() -> None:
    [row] = _read("deep")["markers"]
    assert row == {"name": "all_reduce", "domain": "NCCL", "calls": 3700, "us": 2500.0}
    assert _read("mixture_of_experts")["markers"] == []


def test_sums_without_times_are_null() -> None:
    document = _read("sums")
    assert document["time"]["sum_us"] > 0
    assert {document["time"][name] for name in ("union_us", "wall_us", "gap_us", "step_us")} == {
        None
    }
    assert document["steps"]["unknown_us"] == dict.fromkeys(_SPREAD)


def test_without_decode_steps_their_time_is_null() -> None:
    assert _read("almost_empty")["steps"]["decode_us"] == dict.fromkeys(_SPREAD)


def test_a_figure_that_does_not_exist_is_null() -> None:
    document = _read("nothing")
    assert document["coverage"]["layer"] is None
    assert document["time"]["union_us"] is None
    assert document["time"]["sum_us"] == 0


def test_keeps_names_as_they_are() -> None:
    assert _read("hostile")["run"]["model"] == HOSTILE_NAME


def test_takes_figures_of_numpy() -> None:
    report = replace(SAMPLES["almost_empty"], wall_us=numpy.float32(math.inf))
    report = replace(report, steps=replace(report.steps, count=numpy.int64(3)))
    document = json.loads(RENDERERS["json"](report))
    assert document["steps"]["count"] == 3
    assert document["time"]["wall_us"] is None

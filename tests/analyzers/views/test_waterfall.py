"""The waterfall of a token's time: its parts add up, and no time is in two of them."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from spark_prof.analyzers.model import Report
from spark_prof.analyzers.summary import summarize
from spark_prof.analyzers.views.waterfall import SMALL_US, waterfall_of
from spark_prof.datasets.opened import ceilings_for, opened
from tests.dashboards.sample import SAMPLES
from tests.rows import each_row

DATA = Path(__file__).parents[2] / "data"
BUNDLES = (
    *sorted(f"code-h100/{folder.name}" for folder in (DATA / "code-h100").iterdir()),
    "h100-gpt-oss-20b-mxfp4-eager",
    "h100-gpt-oss-20b-mxfp4-graphs",
    "h100-qwen3-30b-a3b-nvfp4-graphs",
    "kineto/qwen3-eager.json.gz",
    "kineto/gpt-oss-graphs",
)
KERNELS = ("floor", "component", "components", "small", "conversion", "collective")


@cache
def report_of(name: str) -> Report:
    with opened(str(DATA / name)) as bundle:
        return summarize(bundle, measured=ceilings_for(bundle, bundle.ranks[0]))


@each_row("name", BUNDLES)
def test_the_parts_add_up_to_what_was_measured(name: str) -> None:
    report = report_of(name)
    found = waterfall_of(report)
    assert sum(part.us for part in found.parts) == pytest.approx(found.us, rel=1e-9)
    if report.steps.tpot_us:
        assert found.us == pytest.approx(report.steps.tpot_us.median)


@each_row("sample", SAMPLES)
def test_the_parts_of_any_report_add_up(sample: str) -> None:
    found = waterfall_of(SAMPLES[sample])
    assert sum(part.us for part in found.parts) == pytest.approx(found.us, rel=1e-9, abs=1e-6)
    assert (found.floor_us is None) == bool(found.no_floor) or not found.parts


@each_row("name", BUNDLES)
def test_each_kernel_counts_once(name: str) -> None:
    """The floor and what is above it are the kernels' time, so that nothing is in two parts."""
    report = report_of(name)
    found = waterfall_of(report)
    decode = next((books for books in report.books if books.phase == found.phase), None)
    assert decode is not None
    kernels = sum(part.us for part in found.parts if part.kind in KERNELS)
    (rest,) = (part.us for part in found.parts if part.kind == "rest")
    summed = decode.kernels_us / decode.steps
    # What overlaps shares the time, and then nothing is left over.
    assert kernels == pytest.approx(summed, rel=1e-6) if rest else kernels <= summed * (1 + 1e-6)
    assert kernels > 0.95 * summed
    assert 0 <= rest < 0.05 * found.us
    assert min(part.us for part in found.parts) >= 0


@each_row("name", BUNDLES)
def test_what_small_kernels_and_conversions_take(name: str) -> None:
    report = report_of(name)
    found = waterfall_of(report)
    if report.roofline is None or found.phase not in ("decode", "prefill"):
        pytest.skip("nothing tells the floors of these steps")
    (phase,) = (p for p in report.roofline.phases if p.phase == found.phase)
    converting = {row.name for row in report.conversions.items}
    above = {"small": 0.0, "conversion": 0.0}
    for row in phase.rows:
        beyond = (row.us - (0.0 if found.no_floor else row.floor_us or 0.0)) * row.calls
        if row.name in converting:
            above["conversion"] += beyond
        elif row.us < SMALL_US and row.component != "collective":
            above["small"] += beyond
    parts = {part.kind: part.us for part in found.parts}
    # Less where overlapping kernels share the time, or where a floor is known by component only.
    least = 0.9 if phase.unplaced or not parts["rest"] else 1 - 1e-6
    for kind, us in above.items():
        assert least * us - 1e-9 <= parts.get(kind, 0.0) <= us * (1 + 1e-6) + 1e-9, kind


def test_without_a_bandwidth_it_begins_with_the_kernels_and_says_why() -> None:
    report = report_of("code-h100/dense-awq")
    assert report.roofline is not None
    assert waterfall_of(report).floor_us
    phases = tuple(replace(phase, floor_us=None) for phase in report.roofline.phases)
    roofline = replace(report.roofline, phases=phases, notes=("No bandwidth is known.",))
    found = waterfall_of(replace(report, roofline=roofline))
    assert found.floor_us is None
    assert found.no_floor == "No bandwidth is known."
    assert sum(part.us for part in found.parts) == pytest.approx(found.us)


def test_a_floor_of_little_of_the_time_is_none() -> None:
    report = report_of("code-h100/dense-awq")
    assert report.roofline is not None
    phases = tuple(replace(p, placed_us=0.4 * p.kernels_us) for p in report.roofline.phases)
    found = waterfall_of(replace(report, roofline=replace(report.roofline, phases=phases)))
    assert found.floor_us is None
    assert "40 %" in found.no_floor


def test_a_token_is_a_part_of_a_step_that_gives_several() -> None:
    report = report_of("code-h100/dense-bf16")
    tokens = report.steps.tpot_us
    assert tokens is not None
    third = replace(tokens, median=tokens.median / 3, mean=tokens.mean / 3)
    whole = waterfall_of(report)
    found = waterfall_of(replace(report, steps=replace(report.steps, tpot_us=third)))
    assert found.us == pytest.approx(whole.us / 3)
    assert found.floor_us == pytest.approx((whole.floor_us or 0) / 3)


def test_sums_without_steps_are_taken_apart_as_a_whole() -> None:
    found = waterfall_of(SAMPLES["sums"])
    assert (found.of, found.steps, found.floor_us) == ("run", 0, None)
    assert found.us == pytest.approx(sum(row.us for row in SAMPLES["sums"].kernels))

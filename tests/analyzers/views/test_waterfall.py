"""The waterfall of a token's time: its parts add up, and no time is in two of them."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from spark_prof.analyzers.model import Report
from spark_prof.analyzers.step_time import HOST, LAUNCH_GAPS
from spark_prof.analyzers.summary import summarize
from spark_prof.analyzers.views import waterfall
from spark_prof.analyzers.views.waterfall import DIFFERENCES, SMALL_US, waterfall_of
from spark_prof.dashboards.render import Layout, render_report
from spark_prof.datasets.opened import ceilings_for, opened
from tests.dashboards.sample import SAMPLES
from tests.rows import each_row

DATA = Path(__file__).parents[2] / "data"
BUNDLES = (
    "code-h100/dense-awq",
    "code-h100/dense-bf16",
    "code-h100/qwen3-30b-a3b-nvfp4",
    "h100-gpt-oss-20b-mxfp4-eager",
    "h100-gpt-oss-20b-mxfp4-graphs",
    "h100-qwen3-30b-a3b-nvfp4-graphs",
    "kineto/qwen3-eager.json.gz",
    "kineto/gpt-oss-graphs",
)
KERNELS = (
    "floor",
    "nodes",
    "component",
    "components",
    "drafter",
    "small",
    "conversion",
    "collective",
)


@cache
def report_of(name: str) -> Report:
    with opened(str(DATA / name)) as bundle:
        return summarize(bundle, measured=ceilings_for(bundle, bundle.ranks[0]))


@pytest.mark.slow
@each_row("sample", SAMPLES)
def test_the_parts_of_any_report_add_up(sample: str) -> None:
    found = waterfall_of(SAMPLES[sample])
    assert sum(part.us for part in found.parts) == found.us
    assert (found.floor_us is None) == bool(found.no_floor) or not found.parts


@pytest.mark.slow
@each_row("name", BUNDLES)
def test_the_parts_are_those_of_the_typical_step(name: str) -> None:
    report = report_of(name)
    found, account = waterfall_of(report), report.typical_steps[0]
    sums: dict[str, float] = defaultdict(float)
    assert account.token is None or found.us == account.token.token_us
    assert account.token is None or account.token.steps_per_token == 1
    for part in found.parts:
        sums["kernels" if part.kind in KERNELS else part.kind] += part.us
    assert sums["launch_gaps"] == account.us(LAUNCH_GAPS)
    assert sums["host"] == account.us(HOST)
    assert sums["copies"] == account.us("memcpy")
    running = account.step_us - account.idle_us - account.us("memcpy")
    assert sums["kernels"] + sums["rest"] == running
    assert abs(sums["rest"]) < 1e-6 * found.us
    assert min(part.us for part in found.parts if part.kind not in DIFFERENCES) >= 0


@each_row("name", BUNDLES)
def test_what_small_kernels_and_conversions_take(name: str) -> None:
    """As the roofline has them of a mean step; the typical one differs little from that."""
    report = report_of(name)
    found = waterfall_of(report)
    if report.roofline is None or found.account.phase not in ("decode", "prefill"):
        pytest.skip("nothing tells the floors of these steps")
    (phase,) = (p for p in report.roofline.phases if p.phase == found.account.phase)
    converting = {row.name for row in report.conversions.items}
    above = {"small": 0.0, "conversion": 0.0}
    for row in phase.rows:
        beyond = (row.us - (0.0 if found.no_floor else row.floor_us or 0.0)) * row.calls
        if row.name in converting:
            above["conversion"] += beyond
        elif row.us < SMALL_US and row.component != "collective":
            above["small"] += beyond
    parts = {part.kind: part.us for part in found.parts}
    for kind, us in above.items():
        assert parts.get(kind, 0.0) == pytest.approx(us, rel=0.1, abs=1e-6), kind


def test_what_a_drafter_runs_is_a_part_of_its_own() -> None:
    """Half of each of these kernels' calls, of whatever component, becomes a drafter's."""
    report = report_of("code-h100/dense-bf16")
    assert report.roofline is not None
    whole = waterfall_of(report)
    phases = tuple(
        replace(
            phase,
            rows=tuple(
                replace(row, calls=row.calls / 2, step_us=row.step_us / 2, role=role)
                for row in phase.rows
                for role in (row.role, f"drafter.{row.role}")
            ),
        )
        for phase in report.roofline.phases
    )
    typical = tuple(
        replace(row, calls=row.calls / 2, us=row.us / 2, kernel_us=row.kernel_us / 2, role=role)
        for row in report.typical
        for role in (row.role, f"drafter.{row.role}")
    )
    roofline = replace(report.roofline, phases=phases)
    found = waterfall_of(replace(report, roofline=roofline, typical=typical))
    before, after = (
        {(part.kind, part.component): part.us for part in one.parts} for one in (whole, found)
    )
    assert found.us == pytest.approx(whole.us)
    assert sum(part.us for part in found.parts) == found.us
    assert found.floor_us == pytest.approx(whole.floor_us)
    halves = [us / 2 for (kind, _), us in before.items() if kind in ("component", "small")]
    halves += [us / 2 for (kind, _), us in before.items() if kind == "components"]
    assert after["drafter", ""] == pytest.approx(sum(halves), rel=1e-6)
    for key in before.keys() & after.keys():
        if key[0] == "component":
            assert after[key] == pytest.approx(before[key] / 2, rel=1e-6)


def test_the_lower_bound_stands_beside_the_median_step_not_the_mean() -> None:
    """One step of a hundred that stalls makes the mean longer; the report must not notice."""
    report = report_of("code-h100/dense-awq")
    whole, account = waterfall_of(report), report.typical_steps[0]
    mean = replace(account.step, mean=100 * account.step.mean)
    spread = [replace(r, spread=replace(r.spread, mean=9e9, median=9e9)) for r in account.parts]
    assert account.sums
    sums = replace(account.sums, step_us=9e9, gap_us=9e9, copies_us=9e9)
    stalled = replace(account, sums=sums, step=mean, parts=tuple(spread))
    steps = {
        name: value and replace(value, mean=9e9)
        for name in ("decode_us", "tpot_us", "host_gap_us")
        for value in [getattr(report.steps, name)]
    }
    changed = replace(report, accounts=(stalled,), steps=replace(report.steps, **steps))
    found = waterfall_of(changed)
    assert (found.parts, found.us) == (whole.parts, whole.us)
    assert whole.us == account.token_us


def test_without_a_bandwidth_it_begins_with_the_kernels_and_says_why() -> None:
    report = report_of("code-h100/dense-awq")
    assert report.roofline is not None
    assert waterfall_of(report).floor_us
    phases = tuple(replace(phase, floor_us=None) for phase in report.roofline.phases)
    roofline = replace(report.roofline, phases=phases, notes=("No bandwidth is known.",))
    found = waterfall_of(replace(report, roofline=roofline))
    assert found.floor_us is None
    assert found.no_floor == "No bandwidth is known."
    assert sum(part.us for part in found.parts) == found.us


def test_a_floor_of_little_of_the_time_is_none() -> None:
    report = report_of("code-h100/dense-awq")
    assert report.roofline is not None
    phases = tuple(replace(p, placed_us=0.4 * p.kernels_us) for p in report.roofline.phases)
    found = waterfall_of(replace(report, roofline=replace(report.roofline, phases=phases)))
    assert found.floor_us is None
    assert "40 %" in found.no_floor


def test_a_token_is_a_part_of_a_step_that_gives_several() -> None:
    report = report_of("code-h100/dense-bf16")
    account, whole = report.typical_steps[0], waterfall_of(report)
    assert account.token is not None
    names = ("token_us", "typical_us", "uneven_us", "prompts_us", "steps_per_token")
    thirds = {name: getattr(account.token, name) / 3 for name in names}
    third = replace(account, token=replace(account.token, **thirds))
    found = waterfall_of(replace(report, accounts=(third,)))
    assert found.us == pytest.approx(whole.us / 3)
    assert found.floor_us == pytest.approx((whole.floor_us or 0) / 3)


def test_sums_without_steps_are_taken_apart_as_a_whole() -> None:
    found = waterfall_of(SAMPLES["sums"])
    assert (found.of, found.account.steps, found.floor_us) == ("run", 0, None)
    assert found.us == pytest.approx(sum(row.us for row in SAMPLES["sums"].kernels))


def test_a_report_draws_it_once(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[Report] = []
    work_out = waterfall._drawn
    monkeypatch.setattr(
        waterfall, "_drawn", lambda r, *phases: drawn.append(r) or work_out(r, *phases)
    )
    with opened(str(DATA / "code-h100/dense-awq")) as bundle:
        report = summarize(bundle)
    render_report(report, Layout("text"), whole=True)
    assert len(drawn) == 1
    # Another report is another one, however much of it is the same.
    assert waterfall_of(replace(report, accounts=())).of == "run"


@each_row(
    "name", (*BUNDLES, "architectures/llama4/default", "architectures/deepseek-v3-mtp/default")
)
def test_each_kernel_has_its_own_part_of_its_component(name: str) -> None:
    """Also where kernels run at once, and none is made longer or shorter to fit."""
    report = report_of(name)
    account = report.drawn_step
    assert account is not None
    for row in account.parts:
        if row.name in (LAUNCH_GAPS, HOST, "memcpy"):
            continue
        parts = [k for k in report.typical if (k.phase, k.component) == (account.phase, row.name)]
        assert sum(k.us for k in parts) == row.us, row.name
        for kernel in parts:
            assert kernel.us <= kernel.kernel_us + 1e-6


def test_what_lower_bounds_count_twice_is_a_part_of_its_own() -> None:
    """In llama4 the shared experts run beside others: their bounds are longer than their part."""
    found = waterfall_of(report_of("architectures/llama4/default"))
    (rest,) = (part.us for part in found.parts if part.kind == "rest")
    assert rest < -10
    assert sum(part.us for part in found.parts) == found.us

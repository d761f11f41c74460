"""Every threshold of a finding at both sides of its bound, where a healthy report can have it."""

from __future__ import annotations

from dataclasses import replace

from spark_prof.analyzers.breakdown import Copies, CopyRow, KernelRow
from spark_prof.analyzers.findings.ranking import RULES
from spark_prof.analyzers.model import ClockRow, Collectives, Lateness, Report
from spark_prof.analyzers.recorded_run import Clocks
from spark_prof.analyzers.step_accounting import Spread
from spark_prof.rules import thresholds as t
from spark_prof.rules.thresholds import THRESHOLDS
from tests.analyzers.findings.planted import PLANTED, Planted, seen_by
from tests.analyzers.findings.reports import (
    HEALTHY,
    NORM,
    STEP_US,
    STEPS,
    accounts,
    component,
    executed,
    kernel,
    shape,
    shaped,
)


def with_steps(**changes: object) -> Report:
    return replace(HEALTHY, steps=replace(HEALTHY.steps, **changes))  # type: ignore[arg-type]


def waiting_steps(count: float) -> Report:
    """So many decode steps, with a large gap in each."""
    report = replace(HEALTHY, accounts=accounts(0.0, 0.2 * STEP_US))
    return replace(report, steps=replace(report.steps, decode=round(count)))


def idle(share: float) -> Report:
    """An eager run whose GPU waits for that share of a step."""
    return executed(replace(HEALTHY, accounts=accounts(0.0, share * STEP_US)), "eager")


def small_kernels(count: float, share: float) -> Report:
    """So many kernels a step that take that share of it, with nothing between them."""
    row = shape(NORM, "norm", us=share * STEP_US / count, calls=round(count), blocks=1)
    return replace(shaped(row), accounts=accounts(0.0, 15.0))


def copied(share: float) -> Report:
    items = (CopyRow("Memcpy HtoD", "memcpy", STEPS, share * STEP_US * STEPS, 1 << 20),)
    return replace(
        HEALTHY, accounts=accounts(copies_us=share * STEP_US), copies=Copies(items=items)
    )


def late(share: float) -> Report:
    row = Lateness(None, "start", (1,), (0,), 0, 0, 40, share * STEP_US, 1.0, 900.0)
    return replace(HEALTHY, collectives=Collectives(lateness=(row,)))


def reduced(share: float, call_us: float = 10.0) -> Report:
    us = share * STEP_US * STEPS
    row: KernelRow = replace(
        kernel("ncclDevKernel_AllReduce_Sum_bf16_RING_LL", "collective", us),
        calls=max(round(us / call_us), 1),
    )
    row = replace(row, us=row.calls * call_us)
    clock = ClockRow(1, 0, True, 0.0, 0.0, 1.0, 10, "collectives")
    return replace(HEALTHY, kernels=(row,), collectives=Collectives(clocks=(clock,)))


def clocked(ratio: float) -> Report:
    clocks = Clocks(round(1000 * ratio), 1000, ("power cap",))
    return replace(HEALTHY, gpu=replace(HEALTHY.gpu, clocks=clocks))


PLANTS: dict[str, Planted] = {planted.row.name: planted for planted in PLANTED} | {
    row.name: Planted(row, finding, seen_by(finding, plant), *at)
    for finding, plant, row, *at in (
        ("scheduler-gaps", lambda x: replace(HEALTHY, accounts=accounts(0, x * STEP_US)),
         t.GAP_SHARE, True),
        ("scheduler-gaps", waiting_steps, t.GAP_STEPS, True),
        ("idle-gpu", idle, t.IDLE_SHARE, True),
        ("slow-steps",
         lambda x: with_steps(decode=round(x), decode_us=Spread(800.0, 3000.0, 1000.0)),
         t.SLOW_STEPS, True),
        ("slow-steps",
         lambda x: with_steps(decode_us=Spread(1000.0 * (1 - x), 3000.0, 1000.0)), t.UNEVEN_SHARE),
        ("slow-steps",
         lambda x: with_steps(decode_us=Spread(800.0, 800.0 * x, 1000.0)), t.SLOW_TIMES, True),
        ("small-kernels", lambda x: small_kernels(x, 0.12), t.SMALL_KERNELS, True),
        ("small-kernels", lambda x: small_kernels(60, x), t.SMALL_SHARE),
        ("copies-in-decode", copied, t.COPY_SHARE, True),
        ("sampler-cost",
         lambda x: replace(HEALTHY, components=(component("sampler", x * STEP_US),)),
         t.SAMPLER_SHARE, True),
        ("grid-smaller-than-gpu", lambda x: shaped(shape(us=x, calls=100, blocks=13, busy=0.1)),
         t.PRODUCT_TIME, True),
        ("grid-smaller-than-gpu", lambda x: shaped(shape(us=50, blocks=120, busy=1 - x)),
         t.IDLE_BLOCKS),
        ("grid-smaller-than-gpu",
         lambda x: shaped(shape(us=x * STEP_US, calls=2, blocks=60, busy=0.5)), t.STAKE_SHARE),
        ("tail-wave",
         lambda x: shaped(shape(us=50, blocks=264, waves=1.5, busy=x)), t.TAIL_PLACES, False),
        ("straggler-rank", late, t.LATE_SHARE, True),
        ("nccl-all-reduce", reduced, t.REDUCE_SHARE),
        ("nccl-all-reduce", lambda x: reduced(0.2, x), t.SMALL_MESSAGE, False),
        ("clocks-held-down", clocked, t.CLOCK_SHARE, False),
    )
}  # fmt: skip
"""What makes a healthy report have that value, and the finding that asks the threshold."""


def test_a_finding_is_there_on_one_side_of_its_threshold_only() -> None:
    wrong = []
    for name, (row, finding, seen, at) in PLANTS.items():
        step = 1 if isinstance(row.value, int) else 0.02 * row.value
        below, above = (seen(value) for value in (row.value - step, row.value + step))
        if below == above:
            wrong.append(f"{name}: {finding} is {'there' if above else 'missing'} on both sides")
        if at is not None and seen(row.value) is not at:
            wrong.append(f"{name}: {finding} is {'missing' if at else 'there'} at the bound")
        assert at is not None or isinstance(row.value, float), name
    assert wrong == []


def test_every_threshold_is_planted() -> None:
    names = [row.name for row in THRESHOLDS]
    assert len(names) == len(set(names))
    assert PLANTS.keys() == set(names)


def test_thresholds_are_those_of_rules_that_there_are() -> None:
    rules = {rule.id for rule in RULES}
    for row in THRESHOLDS:
        assert set(row.findings) <= rules, row.name
        assert row.unit
        assert row.why
        assert not row.findings or PLANTS[row.name].finding in row.findings

"""Rules about waiting and about uneven steps: what fires each, and what keeps it quiet."""

from __future__ import annotations

from dataclasses import replace

import pytest

from spark_prof.analyzers.findings.ranking import findings_of
from spark_prof.analyzers.model import Finding, Report
from spark_prof.analyzers.step_accounting import Spread
from tests.analyzers.findings.reports import HEALTHY, executed, found, gaps, shape, shaped
from tests.rows import each_row

GRAPHS = "torch.compile, CUDA graphs (FULL_AND_PIECEWISE)"


def only(report: Report, rule: str) -> Finding:
    [finding] = found(report, rule)
    assert finding.id == rule
    assert finding.text
    assert finding.fix
    assert finding.evidence
    return finding


def test_a_healthy_run_has_no_findings() -> None:
    assert findings_of(HEALTHY) == ()


def test_gaps_between_kernels() -> None:
    # 96 kernels in a step, each of which a graph may start a microsecond after the one before.
    finding = only(replace(HEALTHY, tokens=gaps(396.0, 0.0)), "host-gaps")
    assert finding.ms_per_token == pytest.approx(0.3)
    assert "300 us" in finding.text
    assert "30.0%" in finding.text


@pytest.mark.parametrize("between", [0.0, 96.0, 140.0])
def test_what_a_graph_needs_between_its_kernels_is_no_finding(between: float) -> None:
    assert found(replace(HEALTHY, tokens=gaps(between, 0.0)), "host-gaps") == []


def test_without_graphs_the_fix_is_graphs() -> None:
    report = executed(replace(HEALTHY, tokens=gaps(500.0, 0.0)), "torch.compile (VLLM_COMPILE)")
    assert "leave out --enforce-eager" in only(report, "host-gaps").fix
    report = executed(report, GRAPHS)
    assert "--cudagraph-capture-sizes" in only(report, "host-gaps").fix


@pytest.mark.parametrize("rule", ["host-gaps", "scheduler-gaps"])
def test_of_an_eager_run_and_of_a_cpu_another_rule_speaks(rule: str) -> None:
    late = replace(HEALTHY, tokens=gaps(500.0, 500.0))
    assert found(late, rule)
    assert found(executed(late, "eager"), rule) == []
    assert found(executed(late, GRAPHS, units="op"), rule) == []
    assert found(replace(late, tokens=()), rule) == []
    assert found(replace(late, steps=replace(late.steps, decode=7)), rule) == []


def test_a_scheduler_that_the_gpu_waits_for() -> None:
    late = replace(HEALTHY, tokens=gaps(0.0, 200.0))
    finding = only(late, "scheduler-gaps")
    assert finding.ms_per_token == pytest.approx(0.2)
    assert "--async-scheduling" not in finding.fix
    assert "--async-scheduling" in only(executed(late, GRAPHS), "scheduler-gaps").fix
    assert found(replace(HEALTHY, tokens=gaps(0.0, 49.0)), "scheduler-gaps") == []


def test_the_evidence_says_what_slows_the_host_beside() -> None:
    late = replace(HEALTHY, tokens=gaps(0.0, 200.0))
    imported = executed(late, GRAPHS, backend="imported: kineto")
    assert any("slows the host" in line for line in only(imported, "scheduler-gaps").evidence)
    assert not any("slows" in line for line in only(late, "scheduler-gaps").evidence)


def test_tokens_per_step_make_a_gap_smaller_per_token() -> None:
    late = replace(HEALTHY, tokens=gaps(0.0, 200.0))
    steps = replace(late.steps, tpot_us=Spread(500.0, 500.0, 500.0))
    assert only(replace(late, steps=steps), "scheduler-gaps").ms_per_token == pytest.approx(0.1)


@each_row(
    ("decode_us", "steps", "fires"),
    [
        (Spread(1000.0, 5000.0, 1200.0), 100, True),
        (Spread(1000.0, 1100.0, 1200.0), 100, False),  # uneven, but none is far off
        (Spread(1000.0, 5000.0, 1010.0), 100, False),
        (Spread(1000.0, 5000.0, 1200.0), 15, False),
        (Spread(1000.0, 5000.0, 900.0), 100, False),
    ],
)
def test_slow_steps(decode_us: Spread, steps: int, fires: bool) -> None:
    changed = replace(HEALTHY.steps, decode_us=decode_us, tpot_us=decode_us, decode=steps)
    report = replace(HEALTHY, steps=changed)
    assert bool(found(report, "slow-steps")) == fires
    if fires:
        assert only(report, "slow-steps").ms_per_token == pytest.approx(0.2)


@pytest.mark.parametrize(
    ("mixed", "mixed_us", "fires"), [(10, 5000.0, True), (1, 1500.0, False), (0, 0.0, False)]
)
def test_mixed_steps(mixed: int, mixed_us: float, fires: bool) -> None:
    slower = Spread(mixed_us, mixed_us, mixed_us) if mixed else None
    report = replace(HEALTHY, steps=replace(HEALTHY.steps, mixed=mixed, mixed_us=slower))
    assert bool(found(report, "mixed-steps")) == fires
    if fires:
        # One in eleven steps that decode takes 4 ms longer.
        finding = only(report, "mixed-steps")
        assert finding.ms_per_token == pytest.approx(4 / 11)
        assert "10 of 110 steps" in finding.text


def test_without_steps_that_decode_nothing_is_said() -> None:
    none = replace(HEALTHY.steps, decode=0, decode_us=None, tpot_us=None)
    report = replace(shaped(shape(busy=0.3, blocks=40)), steps=none, tokens=())
    assert findings_of(report) == ()

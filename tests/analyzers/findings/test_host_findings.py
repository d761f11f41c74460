"""The finding about code that the GPU waits for: on both sides of each of its bounds."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from spark_prof.analyzers.host.host_gaps import interval_of
from spark_prof.analyzers.host.host_rows import HostCode, HostStage
from spark_prof.analyzers.summary import summary_of
from spark_prof.rules.thresholds import HOST_SAMPLES
from tests import host_stacks
from tests.analyzers.findings.reports import HEALTHY, STEP_US, accounts, found

WANTED = "host-code"


def stage(name: str, samples: int, whole: int, gap_us: float) -> HostStage:
    share = samples / whole
    return HostStage(name, samples, share, *interval_of(samples, whole), gap_us * share, 0.1)


def code(share: float, whole: int = 1000, gap: float = 0.2, name: str = "schedule") -> HostCode:
    """So many samples in gaps that are that part of a step, and this share of them in a stage."""
    rows = (stage(name, round(share * whole), whole, gap * STEP_US),)
    return HostCode(
        rounds=5 * whole, gap_samples=whole, gap_us=gap * STEP_US, inside_us=0.0,
        between_us=gap * STEP_US, steps=100, covered=0.9, sure=0.8, unknown=0.0, error_us=500.0,
        enough=whole >= HOST_SAMPLES.value, stages=rows,
    )  # fmt: skip


def finds(host: HostCode) -> bool:
    return bool(found(replace(HEALTHY, accounts=accounts(copies_us=0.0), host=host), WANTED))


def test_waiting_and_unknown_code_are_no_stage_to_change() -> None:
    for name in ("gpu", "requests", "other", "worker", "profiler"):
        assert not finds(code(0.9, name=name))


def test_the_planted_function_is_named(tmp_path: Path) -> None:
    report = summary_of(host_stacks.bundle(tmp_path / "b")).report
    finding = next(f for f in report.findings if f.id == WANTED)
    assert "75 % of the time in which the GPU waits is spent choosing the batch" in finding.text
    assert finding.text.endswith("3.00 ms of a mean profiled step, in slow_policy (policy.py).")
    assert "180 of 240 stacks" in finding.evidence[0]
    # What the finding about the whole gap claims is not claimed twice.
    assert finding.ms_per_token is None
    assert "scheduler-gaps" in {f.id for f in report.findings}

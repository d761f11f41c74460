"""The rule about clocks: what fires it, and what keeps it quiet."""

from __future__ import annotations

from dataclasses import replace

import pytest

from spark_prof.analyzers.model import Report
from spark_prof.analyzers.recorded_run import Clocks
from tests.analyzers.findings.reports import HEALTHY, found
from tests.rows import each_row


def clocked(clocks: Clocks | None) -> Report:
    return replace(HEALTHY, gpu=replace(HEALTHY.gpu, clocks=clocks))


def test_a_power_cap() -> None:
    [finding] = found(clocked(Clocks(990, 1980, ("power cap",))), "clocks-held-down")
    # 900 us of kernels in a step, at half the clock.
    assert finding.ms_per_token == pytest.approx(0.45)
    assert "990 MHz of at most 1,980 MHz, held down by: power cap" in finding.text
    assert "nvidia-smi -pl" in finding.fix


def test_reasons_that_share_a_fix_and_one_that_has_none() -> None:
    hot = ("temperature (software)", "temperature (hardware)")
    [finding] = found(clocked(Clocks(990, 1980, hot)), "clocks-held-down")
    assert finding.fix.count("cool it better") == 1
    [finding] = found(clocked(Clocks(990, 1980, ("sync boost",))), "clocks-held-down")
    assert "nvidia-smi -q" in finding.fix


@each_row(
    "clocks",
    [
        None,
        Clocks(1900, 1980, ("power cap",)),  # hardly held down
        Clocks(990, 1980, ()),  # as fast as this GPU is under that load
        Clocks(990, None, ("power cap",)),
    ],
)
def test_clocks_that_are_as_they_should_be_or_unknown(clocks: Clocks | None) -> None:
    assert found(clocked(clocks), "clocks-held-down") == []

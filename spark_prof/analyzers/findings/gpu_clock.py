"""A rule about a GPU that runs below its clock."""

from __future__ import annotations

from collections.abc import Iterator

from spark_prof.analyzers.finding import Finding
from spark_prof.analyzers.findings.rule import Rule, ms_per_token, rule
from spark_prof.analyzers.model import Report

_HELD_DOWN = 0.9

_FIXES = {
    "power cap": "raise the power limit (nvidia-smi -pl) where the board allows it",
    "application clocks": "lift the locked clocks (nvidia-smi -rgc; nvidia-smi -rac)",
    "temperature (software)": "cool it better",
    "temperature (hardware)": "cool it better",
    "hardware slowdown": "look for heat, a weak power supply or a loose cable",
    "power brake": "look at the power supply, which asks for less",
}
"""What to do about each reason, in the words of profiler.facts."""


@rule("clocks-held-down", "steps",
      "a clock under 90 % of the highest right after the last step, and a reason that the driver "
      "tells")  # fmt: skip
def _held_down(report: Report) -> Iterator[Finding]:
    clocks = report.gpu.clocks
    if clocks is None or not clocks.highest_mhz or not clocks.throttled:
        return
    ratio = clocks.sm_mhz / clocks.highest_mhz
    if ratio >= _HELD_DOWN:
        return
    us = sum(row.decode_us for row in report.components) * (1 - ratio)
    fixes = dict.fromkeys(_FIXES[reason] for reason in clocks.throttled if reason in _FIXES)
    yield Finding("clocks-held-down", ms_per_token(report, us),
        f"After the last step the GPU ran at {clocks.sm_mhz:,} MHz of at most "
        f"{clocks.highest_mhz:,} MHz, held down by: {', '.join(clocks.throttled)}.",
        "Let it run faster: "
        + ("; ".join(fixes) or "look at nvidia-smi -q -d PERFORMANCE while it serves")
        + ".",
        (
            "One reading by NVML right after the last recorded step. The gain is that of kernels "
            "that follow the clock; those that wait for memory gain less.",
        ),
    )  # fmt: skip


CLOCKS: tuple[Rule, ...] = (_held_down,)
"""Rules about clocks."""

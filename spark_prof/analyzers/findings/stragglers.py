"""Rules about what the ranks of a parallel run do to each other, and about clocks."""

from __future__ import annotations

from collections.abc import Iterator

from spark_prof.analyzers.findings.rule import (
    Told,
    decode_step_us,
    decode_steps_us,
    ms_per_token,
    rule,
)
from spark_prof.analyzers.model import Report

_MOSTLY = 0.6
_FEW_STEPS = 16
_MUCH_HELD_UP = 0.02
_MUCH_REDUCED = 0.05
_SMALL_MESSAGE_US = 100.0


@rule("straggler-rank", "ranks",
      "one rank comes last in 60 % of the steps and holds the others up by 2 % of a "
      "step")  # fmt: skip
def _straggler(report: Report) -> Iterator[Told]:
    step, steps = decode_step_us(report), report.collectives.steps
    if not step or steps < _FEW_STEPS:
        return
    for row in report.ranks:
        if not row.slowest_steps or not row.held_up_us or row.slowest_steps < _MOSTLY * steps:
            continue
        share = row.slowest_steps / steps
        lost = row.held_up_us * share
        if lost < _MUCH_HELD_UP * step:
            continue
        yield (ms_per_token(report, lost * report.steps.decode),
            f"Rank {row.rank} comes last in {row.slowest_steps:,} of {steps:,} steps, and the "
            f"others wait {row.held_up_us:,.0f} us for it in each of them.",
            "Compare that GPU with the others while they serve: clocks, power limit and "
            "temperature (nvidia-smi -q -d CLOCK,POWER,TEMPERATURE,PERFORMANCE), other processes "
            "on it, the cores its worker runs on, and the experts it holds.",
            ("Waits in collectives that were matched between the ranks, by corrected clocks.",),
        )  # fmt: skip


@rule("nccl-all-reduce", "ranks",
      "NCCL's all-reduce kernels under 100 us take 5 % of a decode step on one host")  # fmt: skip
def _nccl_all_reduce(report: Report) -> Iterator[Told]:
    whole, clocks = decode_steps_us(report), report.collectives.clocks
    # Between hosts nothing else can do it, and without clocks nothing says that there is one host.
    if not whole or not clocks or not all(clock.same_host for clock in clocks):
        return
    rows = [
        row
        for row in report.kernels
        if row.component == "collective"
        and "ncclDevKernel_AllReduce" in row.name
        and row.calls
        and row.us / row.calls < _SMALL_MESSAGE_US
    ]
    us = sum(row.decode_us for row in rows)
    if us < _MUCH_REDUCED * whole:
        return
    yield (ms_per_token(report, us),
        f"NCCL adds up small messages between GPUs of one host: {us / report.steps.decode:,.0f} us "
        f"of a decode step, {100 * us / whole:.1f} %.",
        "vLLM's own all-reduce takes less for small messages: leave out "
        "--disable-custom-all-reduce. Without peer access between the GPUs it turns itself off, "
        "and its log says so.",
        ("Time of NCCL's all-reduce kernels in decode steps, waits for other ranks included.",),
    )  # fmt: skip


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
def _held_down(report: Report) -> Iterator[Told]:
    clocks = report.gpu.clocks
    if clocks is None or not clocks.highest_mhz or not clocks.throttled:
        return
    ratio = clocks.sm_mhz / clocks.highest_mhz
    if ratio >= _HELD_DOWN:
        return
    us = sum(row.decode_us for row in report.components) * (1 - ratio)
    fixes = dict.fromkeys(_FIXES[reason] for reason in clocks.throttled if reason in _FIXES)
    yield (ms_per_token(report, us),
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

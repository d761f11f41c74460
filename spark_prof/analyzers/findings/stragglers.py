"""Rules about what the ranks of a parallel run do to each other."""

from __future__ import annotations

from collections.abc import Iterator

from spark_prof.analyzers.finding import Finding
from spark_prof.analyzers.findings.rule import (
    Rule,
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
def _straggler(report: Report) -> Iterator[Finding]:
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
        yield Finding("straggler-rank", ms_per_token(report, lost * report.steps.decode),
            f"Rank {row.rank} comes last in {row.slowest_steps:,} of {steps:,} steps, and the "
            f"others wait {row.held_up_us:,.0f} us for it in each of them.",
            "Compare that GPU with the others while they serve: clocks, power limit and "
            "temperature (nvidia-smi -q -d CLOCK,POWER,TEMPERATURE,PERFORMANCE), other processes "
            "on it, the cores its worker runs on, and the experts it holds.",
            ("Waits in collectives that were matched between the ranks, by corrected clocks.",),
        )  # fmt: skip


@rule("nccl-all-reduce", "ranks",
      "NCCL's all-reduce kernels under 100 us take 5 % of a decode step on one host")  # fmt: skip
def _nccl_all_reduce(report: Report) -> Iterator[Finding]:
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
    yield Finding("nccl-all-reduce", ms_per_token(report, us),
        f"NCCL adds up small messages between GPUs of one host: {us / report.steps.decode:,.0f} us "
        f"of a decode step, {us / whole:.1%}.",
        "vLLM's own all-reduce takes less for small messages: leave out "
        "--disable-custom-all-reduce. Without peer access between the GPUs it turns itself off, "
        "and its log says so.",
        ("Time of NCCL's all-reduce kernels in decode steps, waits for other ranks included.",),
    )  # fmt: skip


RANKS: tuple[Rule, ...] = (
    _straggler,
    _nccl_all_reduce,
)
"""Rules about parallel runs."""

"""Rules about what the ranks of a parallel run do to each other, and about clocks."""

from __future__ import annotations

from collections.abc import Iterator

from spark_prof.analyzers.findings.rule import (
    Observation,
    decode_step_us,
    decode_steps_us,
    ms_per_token,
    rule,
    runs_graphs,
)
from spark_prof.analyzers.model import Report
from spark_prof.rules import thresholds

_MUCH_HELD_UP = thresholds.LATE_SHARE.value
_MUCH_REDUCED = thresholds.REDUCE_SHARE.value
_SMALL_MESSAGE_US = thresholds.SMALL_MESSAGE.value
_WAITS = ("collective", "launch_gaps", "host")
"""What a late rank costs: the others time in collectives, itself time in which nothing runs."""


@rule("straggler-rank", "ranks",
      "a rank comes to the collectives of decode steps later than all others, by 2 % of a step, "
      "and an interval of 98 % leaves zero out", _WAITS)  # fmt: skip
def _straggler(report: Report) -> Iterator[Observation]:
    step, batch = decode_step_us(report), report.steps.screen_batch
    for late in report.collectives.lateness:
        if late.batch != batch or not step or late.us < _MUCH_HELD_UP * step:
            continue
        who, rest = _named(late.ranks), _named(late.others)
        one = len(late.ranks) == 1
        where = (
            f"{who} reach{'es' * one} the first collective of decode steps"
            if late.place == "start"
            else f"Within decode steps {who.lower()} come{'s' * one} to the collectives"
        )
        yield Observation(ms_per_token(report, late.us * report.steps.decode),
            f"{where} {late.us:,.0f} us later than {rest.lower()} (98 % interval "
            f"{late.low_us:,.0f} to {late.high_us:,.0f} us, {late.steps:,} steps), which "
            f"wait{'s' * (len(late.others) == 1)} for {'it' if one else 'them'}.",
            _what_to_do(report, late.place),
            (
                "The mean, over decode steps without first uses of kernels, of how much later than "
                "the latest of the others; a rank that is late and early by turns counts nothing.",
                "Collectives that were matched between the ranks, by corrected clocks and by their "
                "lengths: the smaller of both.",
            ),
            subject=late.place,
        )  # fmt: skip


def _named(ranks: tuple[int, ...]) -> str:
    text = ", ".join(map(str, ranks))
    return f"Rank {text}" if len(ranks) == 1 else f"Ranks {text}"


_STATE = {
    "NVIDIA": " (nvidia-smi -q -d CLOCK,POWER,TEMPERATURE,PERFORMANCE)",
    "AMD": " (amd-smi metric)",
}
"""What shows the state of a maker's GPU."""


def _what_to_do(report: Report, place: str) -> str:
    """Where to look: a step begins late by the host that launches it, not by the GPU."""
    host = "the cores its worker runs on, and what else runs on them"
    experts = any(row.name == "experts" and row.decode_us_per_step for row in report.components)
    expert_load = ", and the experts it holds" if experts else ""
    if report.run.units == "op":
        return (
            f"Compare that worker with the others while they serve: {host} "
            f"(VLLM_CPU_OMP_THREADS_BIND){expert_load}."
        )
    if place == "start":
        return (
            "That rank's worker launches its steps late: give it cores of its own on the socket "
            "of its GPU (numactl, taskset), and look at what else runs there."
        )
    if not runs_graphs(report):
        host = f"{host} (each launches its own kernels here)"
    return (
        "Compare that GPU with the others while they serve: clocks, power limit and temperature"
        f"{_STATE.get(report.gpu.vendor or '', '')}, other processes on it, {host}{expert_load}."
    )


@rule("nccl-all-reduce", "ranks",
      "NCCL's all-reduce kernels under 100 us take 5 % of a decode step on one host")  # fmt: skip
def _nccl_all_reduce(report: Report) -> Iterator[Observation]:
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
    yield Observation(ms_per_token(report, us),
        f"NCCL adds up small messages between GPUs of one host: {us / report.steps.decode:,.0f} us "
        f"of a decode step, {100 * us / whole:.1f} %.",
        "vLLM's own all-reduce takes less for small messages: leave out "
        "--disable-custom-all-reduce. Without peer access between the GPUs it turns itself off, "
        "and its log says so.",
        ("Time of NCCL's all-reduce kernels in decode steps, waits for other ranks included.",),
    )  # fmt: skip


_HELD_DOWN = thresholds.CLOCK_SHARE.value

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
def _held_down(report: Report) -> Iterator[Observation]:
    clocks = report.gpu.clocks
    if clocks is None or not clocks.highest_mhz or not clocks.throttled:
        return
    ratio = clocks.sm_mhz / clocks.highest_mhz
    if ratio >= _HELD_DOWN:
        return
    us = sum(row.decode_us for row in report.components) * (1 - ratio)
    fixes = dict.fromkeys(_FIXES[reason] for reason in clocks.throttled if reason in _FIXES)
    yield Observation(ms_per_token(report, us),
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

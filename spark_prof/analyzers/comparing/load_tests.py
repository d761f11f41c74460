"""Compares results of load generators with each other: the same load, one or several runs a side.

A result tells how its requests vary, not how runs do: of one result a side engine starts are taken
to differ as those of recordings are, and requests that were in flight together count as one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from spark_prof.analyzers.comparing.noise import FEWEST_STEPS, START, Change, Figure, change
from spark_prof.errors import CommandError
from spark_prof.traces.benchmarks.load_test import BenchmarkResult, BenchmarkRun, Latency

QUANTITIES = ("tpot", "itl", "ttft", "e2e")
"""The latencies of a run, the one that a decode step decides first."""
_SAME_LENGTH_SHARE = (
    0.05  # lengths of prompts and answers that differ by a smaller share are as long
)


@dataclass(frozen=True)
class ClientLoad:
    """What clients asked of a server."""

    concurrency: int | None
    request_rate: float | None  # None for as fast as they go
    input_tokens: float | None  # of a request
    output_tokens: float | None


@dataclass(frozen=True)
class ComparedLatency:
    """One latency of both sides, in us."""

    quantity: str  # one of QUANTITIES
    change: Change


@dataclass(frozen=True)
class LoadComparison:
    """Results of one load."""

    names: tuple[str, str]
    sources: tuple[tuple[str, ...], tuple[str, ...]]
    models: tuple[str, str]  # as the server called them
    loads: tuple[ClientLoad, ClientLoad]
    other: str  # the field of the load that differs; empty where it is the same
    latencies: tuple[ComparedLatency, ...]
    throughput: tuple[float | None, float | None]  # output tokens a second
    failed: tuple[int, int]  # requests

    @property
    def headline(self) -> ComparedLatency | None:
        """What the answer is about."""
        return self.latencies[0] if self.latencies else None


def load_of(run: BenchmarkRun) -> ClientLoad:
    """The load of a run."""
    concurrency = run.concurrency
    if concurrency is None and run.mean_concurrency:
        concurrency = max(round(run.mean_concurrency), 1)
    rate = run.request_rate if run.request_rate and math.isfinite(run.request_rate) else None
    lengths = (
        tokens / run.completed if tokens and run.completed else None
        for tokens in (run.input_tokens, run.output_tokens)
    )
    return ClientLoad(concurrency, rate, *lengths)


def compare_loads(
    a: Sequence[BenchmarkResult], b: Sequence[BenchmarkResult], names: tuple[str, str]
) -> LoadComparison:
    """Compares the run of each result of b with those of a, the reference.

    compare_loads([read_benchmark(before)], [read_benchmark(after)], ("before", "after"))
    """
    sides = [_single(result) for result in a], [_single(result) for result in b]
    loads = load_of(sides[0][0]), load_of(sides[1][0])
    other = next(
        (field for run in (*sides[0][1:], *sides[1]) if (field := _other(loads[0], load_of(run)))),
        "",
    )
    latencies = []
    for quantity in QUANTITIES:
        figures = [[_figure(run, getattr(run, quantity)) for run in side] for side in sides]
        complete = [[figure for figure in side if figure is not None] for side in figures]
        if all(len(side) == len(runs) for side, runs in zip(complete, sides, strict=True)):
            latencies.append(ComparedLatency(quantity, change(*complete)))
    if not latencies:
        raise CommandError(f"{a[0].source} and {b[0].source} have no latency that both tell")
    throughput = [_mean([run.output_throughput for run in side]) for side in sides]
    return LoadComparison(
        names=names,
        sources=(tuple(r.source for r in a), tuple(r.source for r in b)),
        models=(sides[0][0].model, sides[1][0].model),
        loads=loads,
        other=other,
        latencies=tuple(latencies),
        throughput=(throughput[0], throughput[1]),
        failed=(sum(run.failed or 0 for run in sides[0]), sum(run.failed or 0 for run in sides[1])),
    )


def _single(result: BenchmarkResult) -> BenchmarkRun:
    if len(result.runs) != 1:
        raise CommandError(
            f"{result.source} holds {len(result.runs)} runs, and one of each result is compared; "
            "give results of one run"
        )
    return result.runs[0]


def _other(one: ClientLoad, run: ClientLoad) -> str:
    """The first field in which two loads differ; what one does not tell is no difference."""
    pairs: Mapping[str, tuple[float | None, float | None]] = {
        name: (getattr(one, name), getattr(run, name)) for name in vars(one)
    }
    for name, (ours, theirs) in pairs.items():
        if name == "request_rate" and (ours is None) != (theirs is None):
            return name
        if ours is None or theirs is None:
            continue
        if abs(ours - theirs) > (
            _SAME_LENGTH_SHARE * max(ours, theirs) if name.endswith("tokens") else 1e-9
        ):
            return name
    return ""


def _figure(run: BenchmarkRun, latency: Latency) -> Figure | None:
    """The mean of a latency; its error by rounds of requests that were in flight together."""
    value = latency.mean if latency.mean is not None else latency.median
    if value is None or not value > 0:
        return None
    rounds = (run.completed or 0) / (load_of(run).concurrency or run.completed or 1)
    error = math.inf
    if latency.std is not None and rounds >= FEWEST_STEPS:
        error = latency.std / math.sqrt(rounds)
    return Figure(value, error, max(rounds - 1, 1.0), start=START["op"] * value)


def _mean(values: Sequence[float | None]) -> float | None:
    numbers = [value for value in values if value is not None]
    return sum(numbers) / len(numbers) if numbers and len(numbers) == len(values) else None

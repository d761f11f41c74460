"""Finds which run of a load generator's result is of which model, as a rate to explain."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from spark_prof.analyzers.why_sides import Rate
from spark_prof.errors import CommandError
from spark_prof.traces.benchmarks.load_test import BenchmarkRun
from spark_prof.traces.benchmarks.read import read_benchmark

_NUMBERED = re.compile(r"(.+):(\d{1,4}(?:,\d{1,4})*)")
_MOST_SHOWN = 6


def measured_rates(text: str, sources: int, batch: int) -> list[Rate]:
    """The rates of an option's text, tokens/s of all sequences together, one a source.

    measured_rates("35,44", 2, 1)[0].step_us == 1e6 / 35
    """
    words = text.split(",")
    try:
        values = [float(word) for word in words]
    except ValueError:
        values = []
    if len(values) != sources or not all(math.isfinite(v) and v > 0 for v in values):
        example = ",".join(["35", "44", "40", "50", "45", "60"][: max(sources, 1)])
        raise CommandError(
            f"--measured {text:.100} is not {sources} rates in tokens/s, one a source: {example}"
        )
    return [Rate(value, batch * 1e6 / value, "--measured") for value in values]


def bench_rates(results: Sequence[str], sources: Sequence[str], batch: int) -> list[Rate]:
    """The rate of each source: of its own result each, or all in one result.

    Args:
        results: files, each with `:N` or `:N,M` behind it where it holds more runs than are meant.
        sources: what the sides are named by; a run that names its model goes to the one like it.
        batch: sequences at a time; runs that are known to be of another number are left out.
    """
    if len(results) not in (1, len(sources)):
        raise CommandError(
            f"--bench is given {len(results)} times for {len(sources)} sources; give it once for "
            "all, or once a source in their order"
        )
    if len(results) == 1:
        return _of_one(results[0], sources, batch)
    return [
        rate
        for result, source in zip(results, sources, strict=True)
        for rate in _of_one(result, [source], batch)
    ]


def _of_one(result: str, sources: Sequence[str], batch: int) -> list[Rate]:
    named = None if Path(result).exists() else _NUMBERED.fullmatch(result)
    path = Path(named[1] if named else result)
    runs = [run for run in read_benchmark(path).runs if run.tpot.typical or run.output_throughput]
    if named:
        numbers = [int(number) for number in named[2].split(",")]
        if len(numbers) != len(sources) or not all(0 < n <= len(runs) for n in numbers):
            raise CommandError(
                f"--bench {result:.200} names no {len(sources)} runs: {path.name} has "
                f"{_listed(runs)}"
            )
        return [_rate(runs[number - 1], batch, f"{path.name}:{number}") for number in numbers]
    of_batch = [
        (number, run)
        for number, run in enumerate(runs, 1)
        if run.concurrency is None or run.concurrency == batch
    ]
    chosen = _by_model(of_batch, sources) or _in_order(of_batch, sources)
    if chosen is None:
        example = ",".join(map(str, range(1, len(sources) + 1)))
        raise CommandError(
            f"which runs of {path.name} are meant is not clear; say it in the order of the "
            f"sources, such as --bench {path}:{example}; it has {_listed(runs)}"
        )
    return [_rate(run, batch, f"{path.name}:{number}") for number, run in chosen]


def _by_model(
    runs: Sequence[tuple[int, BenchmarkRun]], sources: Sequence[str]
) -> list[tuple[int, BenchmarkRun]] | None:
    """The one run of each source's model; None where one has none or several."""
    chosen = []
    for source in sources:
        matches = [(n, run) for n, run in runs if run.model and _is_same_model(run.model, source)]
        if len(matches) != 1:
            return None
        chosen += matches
    return chosen


def _in_order(
    runs: Sequence[tuple[int, BenchmarkRun]], sources: Sequence[str]
) -> list[tuple[int, BenchmarkRun]] | None:
    """As many runs as sources, which contradict none of them."""
    if len(runs) != len(sources):
        return None
    for place, (_, run) in enumerate(runs):
        rest = [source for at, source in enumerate(sources) if at != place]
        if run.model and any(_is_same_model(run.model, other) for other in rest):
            return None
    return list(runs)


def _is_same_model(model: str, source: str) -> bool:
    """Whether two names are of one model: their last parts, without what is no letter or digit."""
    a, b = ("".join(filter(str.isalnum, Path(name).name.lower())) for name in (model, source))
    return bool(a) and a == b


def _rate(run: BenchmarkRun, batch: int, basis: str) -> Rate:
    """By the time between tokens, else by the throughput, which has the prompts' time in it."""
    steps_yield = run.acceptance_length or 1.0
    if run.tpot.typical:
        return Rate(1e6 * batch / run.tpot.typical, run.tpot.typical * steps_yield,
                    f"{basis}, time per token")  # fmt: skip
    assert run.output_throughput
    step_us = batch * 1e6 / run.output_throughput * steps_yield
    return Rate(run.output_throughput, step_us, f"{basis}, throughput")


def _listed(runs: Iterable[BenchmarkRun]) -> str:
    speeds = []
    for number, run in enumerate(runs, 1):
        at = f" at {run.concurrency}" if (run.concurrency or 1) > 1 else ""
        what = " ".join(filter(None, (Path(run.model).name, run.label))) or run.tool
        speed = 1e6 / run.tpot.typical if run.tpot.typical else run.output_throughput or 0.0
        speeds.append(f"{number}: {speed:.1f} ({what:.60}{at})")
    more = [f"{len(speeds) - _MOST_SHOWN} more"] if len(speeds) > _MOST_SHOWN else []
    return f"these, in tokens/s a sequence: {', '.join([*speeds[:_MOST_SHOWN], *more]) or 'none'}"

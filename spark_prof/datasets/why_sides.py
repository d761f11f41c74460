"""Opens checkpoints and recordings by name, and says why one decodes faster than another."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from spark_prof.analyzers.ceilings.ceiling_rows import Question
from spark_prof.analyzers.lookup import mapping_in
from spark_prof.analyzers.model import Report
from spark_prof.analyzers.summary import summarize
from spark_prof.analyzers.why import Why, answer_of, gaps_of, next_of, what_ifs
from spark_prof.analyzers.why_sides import (
    Rate,
    recorded_batch,
    recorded_ranks,
    side_of_checkpoint,
    side_of_recording,
)
from spark_prof.datasets.opened import opened
from spark_prof.errors import CommandError
from spark_prof.rules.gpus import Gpu, find_gpu, gpu_called
from spark_prof.traces.benchmarks.load_test import BenchmarkRun
from spark_prof.traces.benchmarks.read import read_benchmark
from spark_prof.traces.checkpoint import Checkpoint, is_model, model_folder, read_checkpoint
from spark_prof.traces.formats import UnknownFormatError
from spark_prof.traces.resolve import resolve

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
    """The runs as the sources', in order, where there are as many and no model contradicts."""
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
    """The rate by the time between tokens, else by the throughput, which includes the prompts."""
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
        name = " ".join(filter(None, (Path(run.model).name, run.label))) or run.tool
        speed = 1e6 / run.tpot.typical if run.tpot.typical else run.output_throughput or 0.0
        speeds.append(f"{number}: {speed:.1f} ({name:.60}{at})")
    rest = [f"{len(speeds) - _MOST_SHOWN} more"] if len(speeds) > _MOST_SHOWN else []
    return f"these, in tokens/s a sequence: {', '.join([*speeds[:_MOST_SHOWN], *rest]) or 'none'}"


_DEFAULT_GPU = "gb10"
MOST_SIDES = 6


@dataclass(frozen=True)
class WhySettings:
    """For which use it is asked; what is None is taken from the recordings."""

    gpu: Gpu | None = None
    batch: int | None = None
    ranks: int | None = None
    context: int = 0  # of checkpoints
    measured: str = ""  # tokens/s of each source, such as 35,44
    bench: tuple[str, ...] = ()  # or results of load generators, as `bench_rates` takes them


@dataclass(frozen=True)
class SideRecording:
    """A recording's report, with the configuration of its model."""

    report: Report
    config: Mapping[str, Any]


def why_of(sources: Sequence[str], settings: WhySettings) -> Why:
    """Why the first source decodes faster or slower than the others.

    Args:
        sources: folders with a config.json, names of models in Hugging Face's cache, or recordings.

    Raises:
        CommandError: a source is none of these, or they cannot be asked together.
    """
    if len(sources) > MOST_SIDES:
        raise CommandError(f"{len(sources)} sides are too many; give at most {MOST_SIDES}")
    sources = [_folder(source) for source in sources]
    read = [read_source(source, settings.batch) for source in sources]
    reports = [source.report for source in read if isinstance(source, SideRecording)]
    if settings.context and reports:
        raise CommandError("--context is for checkpoints: a recording has the contexts that it had")
    recorded = (find_gpu(r.gpu.name, r.gpu.compute_capability) for r in reports)
    gpu = settings.gpu or next(filter(None, recorded), None) or gpu_called(_DEFAULT_GPU)
    assert gpu is not None
    batch = settings.batch or next((recorded_batch(report) for report in reports), None)
    ranks = settings.ranks or next(map(recorded_ranks, reports), None)
    question = Question(batch or 1, settings.context, ranks=ranks or 1)
    sides = [
        side_of_recording(source.report, name, gpu, source.config)
        if isinstance(source, SideRecording)
        else side_of_checkpoint(source, name, gpu, question)
        for name, source in zip(side_names(sources), read, strict=True)
    ]
    if rates := _rates(sources, settings, question.batch):
        sides = [replace(side, rate=rate) for side, rate in zip(sides, rates, strict=True)]
    checkpoints = [source for source in read if isinstance(source, Checkpoint)]
    findings = [
        source.report.findings if isinstance(source, SideRecording) else () for source in read
    ]
    return Why(
        gpu.name,
        gpu.bandwidth.value,
        gpu.bandwidth.source,
        tuple(sides),
        tuple(what_ifs(checkpoints[0], gpu, question)) if checkpoints else (),
        tuple(answer_of(sides, gpu)),
        next_of(sides, findings, sources),
        tuple(gaps_of(sides)),
        question.batch > 1 and any(side.part("experts") for side in sides if not side.measured),
    )


def _rates(sources: Sequence[str], settings: WhySettings, batch: int) -> list[Rate]:
    if settings.measured:
        return measured_rates(settings.measured, len(sources), batch)
    return bench_rates(settings.bench, sources, batch) if settings.bench else []


def _folder(source: str) -> str:
    """The folder of a model that was named by its configuration."""
    path = Path(source)
    return str(path.parent) if path.name == "config.json" else source


def read_source(source: str, batch: int | None = None) -> SideRecording | Checkpoint:
    """A checkpoint, or a recording with its report."""
    if is_model(source):
        return read_checkpoint(model_folder(source))
    if not Path(source).exists():
        model_folder(source)  # says where a model of that name would be
    try:
        recording = resolve(source)
    except UnknownFormatError as error:
        raise CommandError(
            f"{source:.200} is no model and no recording; why compares folders with a config.json, "
            "names of models in Hugging Face's cache, and recordings"
        ) from error
    with opened(recording) as bundle:
        report = summarize(bundle, batch=batch)
        config = mapping_in(bundle.facts(bundle.ranks[0]), "model_config")
    if report.run.units == "op":
        raise CommandError(
            f"{source:.200} is of a CPU engine: what it reads and computes says nothing of a GPU"
        )
    return SideRecording(report, config)


def side_names(sources: Sequence[str]) -> list[str]:
    """The last part of each name, or all of it where two are alike; numbered where they are one."""
    last = [Path(source).name or source for source in sources]
    ambiguous = [name for name, count in Counter(last).items() if count > 1]
    names = [
        source if name in ambiguous and sources.count(source) == 1 else name
        for name, source in zip(last, sources, strict=True)
    ]
    return [
        f"{name} ({names[:place].count(name) + 1})" if names.count(name) > 1 else name
        for place, name in enumerate(names)
    ]

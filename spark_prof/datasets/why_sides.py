"""Opens checkpoints and recordings by name, and says why one decodes faster than another."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
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
from spark_prof.datasets.bench_rates import bench_rates, measured_rates
from spark_prof.datasets.opened import opened
from spark_prof.errors import CommandError
from spark_prof.rules.gpus import Gpu, find_gpu, gpu_called
from spark_prof.traces.checkpoint import Checkpoint, is_model, model_folder, read_checkpoint
from spark_prof.traces.formats import UnknownFormatError
from spark_prof.traces.resolve import resolve

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

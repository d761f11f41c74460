"""Puts a dataset together: one recording at a time, wherever the engine reads it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from spark_prof.analyzers.model import Report
from spark_prof.analyzers.summary import summary_of
from spark_prof.datasets.engines import Executor, ItemOutcome, run_each
from spark_prof.datasets.opened import opened
from spark_prof.errors import CommandError
from spark_prof.traces.bundle import Bundle
from spark_prof.traces.formats import without_endings
from spark_prof.traces.resolve import Folder, Member, fetched, find_members, is_bundle


@dataclass(frozen=True)
class RankFigures:
    """The figures of one rank that recordings are compared by."""

    rank: int
    steps: int
    decode_steps: int
    decode_median_us: float | None  # length of a decode step; None without any
    decode_p99_us: float | None
    tokens_per_s: float | None  # that the requests received over the wall time; None where unknown
    kernels_us: float
    components: dict[str, float]  # share of the kernel time, the largest first
    layer_coverage: float
    component_coverage: float
    engine_coverage: float


@dataclass(frozen=True)
class DatasetRecording:
    """One recording of a dataset."""

    name: str  # its path below the dataset's folder
    model: str  # model, architecture and quantization
    gpu: str  # the GPU, or the processor of a CPU engine
    execution: str  # how the model ran
    backend: str  # what watched the kernels, or the format it was imported from
    state: str  # complete, interrupted or salvaged
    # At least one, the lowest first; the first one stands for the recording.
    ranks: tuple[RankFigures, ...]
    notes: tuple[str, ...]  # what to know before believing a figure

    @property
    def first(self) -> RankFigures:
        """The figures that stand for the recording."""
        return self.ranks[0]


@dataclass(frozen=True)
class ReadFailure:
    """A recording that could not be read, and why."""

    name: str
    reason: str


@dataclass(frozen=True)
class Dataset:
    """Many recordings beside each other."""

    name: str  # the folder or URL
    # The shortest median decode step first, those without decode steps last.
    recordings: tuple[DatasetRecording, ...]
    failures: tuple[ReadFailure, ...]  # by name


def recording_of(bundle: Bundle, name: str) -> DatasetRecording:
    """The row of one recording."""
    first = summary_of(bundle).report
    lowest, *other_ranks = bundle.ranks
    figures = [_figures(lowest, first)]
    figures += [_figures(rank, summary_of(bundle, rank).report) for rank in other_ranks]
    return DatasetRecording(
        name=name,
        model=first.run.model,
        gpu=first.gpu.name,
        execution=first.run.execution,
        backend=first.run.backend,
        state=first.run.state,
        ranks=tuple(figures),
        notes=first.notes,
    )


def _figures(rank: int, report: Report) -> RankFigures:
    steps, decode = report.steps, report.steps.decode_us
    return RankFigures(
        rank=rank,
        steps=steps.count,
        decode_steps=steps.decode,
        decode_median_us=decode.median if decode else None,
        decode_p99_us=decode.p99 if decode else None,
        tokens_per_s=1e6 * steps.tokens / report.wall_us
        if steps.tokens and report.wall_us
        else None,
        kernels_us=sum(row.us for row in report.components),
        components={row.name: row.share for row in report.components},
        layer_coverage=report.coverage.layer,
        component_coverage=report.coverage.component,
        engine_coverage=report.coverage.engine,
    )


def import_each(
    source: str, out: Path, like: Path | None, engine: Executor
) -> list[tuple[str, ItemOutcome[tuple[str, ...]]]]:
    """Imports each recording below a folder or its URL into a folder of that name below `out`.

    With Ray every worker must be able to read the one and to write the other.

    Returns:
        The name of each recording with the lines of what it lacks, or the reason why it could not
        be imported.
    """
    members = [m for m in find_members(source) if not is_bundle(Path(m.source))]
    if not members:
        raise CommandError(f"{source} holds bundles only, which need no import")
    imports = [(member.source, out / _name(member.name), like) for member in members]
    if len({place for _, place, _ in imports}) < len(imports):
        raise CommandError(f"{source} holds two recordings of one name but for their ending")
    outcomes = run_each(_import, imports, engine)
    return [
        (place.relative_to(out).as_posix(), outcome)
        for (_, place, _), outcome in zip(imports, outcomes, strict=True)
    ]


def _import(task: tuple[str, Path, Path | None]) -> tuple[str, ...]:
    from spark_prof.importers.sources import import_files

    source, out, like = task
    with fetched(source) as local_source:
        return import_files([local_source.path], out, like).meta.lost


def _name(member: str) -> str:
    """The name of a recording without the endings of its file."""
    path = PurePosixPath(member)
    if path.is_absolute() or ".." in path.parts:
        raise CommandError(f"{member!r:.80} leads out of its folder")
    return str(path.with_name(without_endings(path.name)))


def summarize_dataset(folder: Folder, engine: Executor = Executor.LOCAL) -> Dataset:
    """All recordings of a folder; one that cannot be read is a failure with its reason.

    With Ray every worker must be able to read it.
    """
    members = folder.members
    outcomes = run_each(summarize_member, members, engine)
    summaries = [outcome.value for outcome in outcomes if outcome.value is not None]
    failures = tuple(
        ReadFailure(member.name, outcome.reason)
        for member, outcome in zip(members, outcomes, strict=True)
        if outcome.value is None
    )
    return Dataset(folder.name, tuple(sorted(summaries, key=_fastest)), failures)


def summarize_member(member: Member) -> DatasetRecording:
    """Reads one recording; what runs in the workers."""
    with opened(member.source) as bundle:
        return recording_of(bundle, member.name)


def _fastest(recording: DatasetRecording) -> tuple[float, str]:
    median = recording.first.decode_median_us
    return (math.inf if median is None else median, recording.name)

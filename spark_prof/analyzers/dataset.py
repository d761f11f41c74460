"""What a dataset report says of each recording, as plain data, and how it follows from a report.

All times are microseconds, all shares are fractions of 1.
"""

from __future__ import annotations

from dataclasses import dataclass

from spark_prof.analyzers.model import Report
from spark_prof.analyzers.summary import summary_of
from spark_prof.traces.bundle import Bundle


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

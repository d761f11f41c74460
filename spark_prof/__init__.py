"""Says where each token's time goes in a vLLM run on an NVIDIA GPU.

bundle = spark_prof.load("my-run")
report = spark_prof.report(bundle)
report.components[0].name
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import plotly.graph_objects as go

    from spark_prof.analyzers.model import Report
    from spark_prof.notebook import (
        NotebookClassification,
        NotebookComparison,
        NotebookDiagnosis,
        NotebookReport,
        NotebookWhy,
    )
    from spark_prof.traces.bundle import Bundle

__all__ = [
    "classify", "compare", "doctor", "figures", "load", "record", "report", "show", "why",
]  # fmt: skip


def __dir__() -> list[str]:
    """The names to call, without the modules that they need."""
    return sorted(__all__)


def load(path: str | Path) -> Bundle:
    """Opens a bundle.

    Raises:
        CommandError: the folder is no bundle, or part of it is missing or damaged.
    """
    from pathlib import Path

    from spark_prof.traces.assemble import open_bundle

    return open_bundle(Path(path))


def record(command: Sequence[str], out: str | Path, steps: int = 0) -> Bundle:
    """Runs a command that starts vLLM and records it.

    Args:
        command: the command line, such as ["vllm", "bench", "latency", "--model", "..."].
        out: the bundle's folder, which must not exist or be empty.
        steps: steps to record, 0 for all of them.

    Raises:
        CommandError: the command does not start vLLM, or nothing was recorded.
    """
    from pathlib import Path

    from spark_prof.profiler.launcher import record as record_command
    from spark_prof.profiler.settings import Settings

    settings = Settings(bundle=str(Path(out).absolute()), steps=steps)
    return record_command(command, settings, lambda _: None)[0]


def report(source: Bundle | str | Path, rank: int | None = None) -> NotebookReport:
    """The report of one rank of a bundle or of somebody else's trace, as data.

    In a notebook it shows itself; `kernels_frame()` has its kernels as a DataFrame.

    Args:
        source: an opened bundle, its folder, a trace, or the URL of one.
        rank: the rank, the lowest one if None.

    Raises:
        CommandError: the source is none of these, or damaged.
    """
    from contextlib import nullcontext

    from spark_prof.analyzers.summary import summarize
    from spark_prof.datasets.opened import ceilings_for, opened
    from spark_prof.notebook import NotebookReport
    from spark_prof.traces.bundle import Bundle

    named = source if isinstance(source, Bundle) else str(source)
    with nullcontext(source) if isinstance(source, Bundle) else opened(str(source)) as bundle:
        summary = summarize(bundle, rank, measured=ceilings_for(bundle, rank))
    return NotebookReport.of(summary, named, rank)


def compare(a: str | Path, b: str | Path, rank: int | None = None) -> NotebookComparison:
    """What tells a recording from the reference: where the difference comes from, and how sure.

    Args:
        a: the reference, a bundle's folder or somebody else's trace.
        b: what is held against it.
        rank: the rank, the lowest one if None.

    Raises:
        CommandError: one of them is neither, or damaged, or they have no steps of the same phase.
    """
    from spark_prof.analyzers.comparing.compare_sides import compare as compare_sides
    from spark_prof.datasets.opened import read_side
    from spark_prof.notebook import NotebookComparison

    return NotebookComparison((compare_sides(read_side(str(a), rank), read_side(str(b), rank)),))


def why(
    *sources: str | Path,
    gpu: str | None = None,
    batch: int | None = None,
    context: int = 0,
    tensor_parallel: int | None = None,
    measured: Sequence[float] = (),
    bench: Sequence[str | Path] = (),
) -> NotebookWhy:
    """Why one checkpoint or run decodes faster than another: bytes, lower bound, kernel, precision.

    spark_prof.why("models/nvfp4", "models/fp8", gpu="gb10", measured=[35, 44]).gaps[0].parts

    Args:
        sources: folders with a config.json, names of models in Hugging Face's cache, or recordings.
        batch: sequences at a time; that of a recording, or 1, if None.
        context: tokens of context of each, of checkpoints.
        tensor_parallel: GPUs that share a model; those of a recording, or 1, if None.
        measured: tokens/s of each source, whose gap is split.
        bench: or load generators' results that have them.

    Raises:
        CommandError: a source is none of these, or they cannot be asked together.
    """
    from spark_prof.cli.doctor import gpu_named
    from spark_prof.datasets.why_sides import WhySettings, why_of
    from spark_prof.errors import CommandError
    from spark_prof.notebook import NotebookWhy

    if not sources:
        raise CommandError("why needs a source: a folder with a config.json, or a recording")
    rates = ",".join(map(str, measured))
    question = WhySettings(
        gpu_named(gpu), batch, tensor_parallel, context, rates, tuple(map(str, bench))
    )
    return NotebookWhy.of(why_of([str(source) for source in sources], question))


def doctor(
    source: str | Path | None = None,
    *,
    log: str | Path | None = None,
    model: str | Path | None = None,
    gpu: str | None = None,
    batch: int = 1,
    context: int = 0,
    tensor_parallel: int = 1,
) -> NotebookDiagnosis:
    """Which kernels were chosen and why, which settings have no effect, and what could be reached.

    spark_prof.doctor("serve.log", gpu="gb10").findings

    Args:
        source: a bundle, a trace, a log or a model; this machine if nothing is given.
        log: what the engine printed, in the same run as the source.
        model: a model's folder or name, whose lower bounds are asked for.
        gpu: the GPU that a log or a model is for, such as gb10.

    Raises:
        CommandError: the source is none of these, or damaged.
    """
    from pathlib import Path

    from spark_prof.cli.doctor import diagnose, question_of
    from spark_prof.notebook import NotebookDiagnosis

    question = question_of(batch, context, ranks=tensor_parallel)
    diagnosis = diagnose(
        None if source is None else str(source),
        None if log is None else Path(log),
        None if model is None else str(model),
        gpu,
        question,
    )
    return NotebookDiagnosis.of(diagnosis)


def classify(
    source: str | Path | None = None, *, names: Sequence[str] = (), arch: str | None = None
) -> NotebookClassification:
    """Of each kernel: tensor cores or CUDA cores, in which precision, on what evidence.

    spark_prof.classify(names=["marlin::Marlin"]).rows[0].engine

    Args:
        source: a bundle, a trace, a cubin, a folder of cubins, or a library.
        names: kernels' names instead of a source.
        arch: of a library: the GPU it is for, such as sm_121; its newest if None.

    Raises:
        CommandError: neither or both are given, or the source is none of these.
    """
    from spark_prof.cli.classify import of_names, of_source
    from spark_prof.errors import CommandError
    from spark_prof.notebook import NotebookClassification

    if (source is None) == (not names):
        raise CommandError("classify needs either a source or names")
    rows, lost = of_names(list(names)) if source is None else of_source(str(source), arch)
    title = "kernels by name" if source is None else str(source)
    return NotebookClassification(title, rows, lost)


def figures(report: Report) -> dict[str, go.Figure]:
    """The figures of the HTML report by name, such as "layers", to show or to change.

    Each is named after the section in which it stands; one without anything to show is left out.
    The KeyError of another name lists those that there are.
    """
    from spark_prof.dashboards.outline import figures as figures_of

    return figures_of(report)


def show(report: Report) -> NotebookReport:
    """The report as what a cell of a notebook shows: its one screen, in a console as text."""
    from spark_prof.notebook import NotebookReport

    if isinstance(report, NotebookReport):
        return report
    return NotebookReport.of(report, report.run.source, None)

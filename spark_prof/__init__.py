"""Says where each token's time goes in a vLLM run on an NVIDIA GPU.

bundle = spark_prof.load("my-run")
report = spark_prof.report(bundle)
report.components[0].name
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from spark_prof.analyzers.model import Report
    from spark_prof.notebook import NotebookComparison, NotebookReport
    from spark_prof.traces.bundle import Bundle

__all__ = ["compare", "figures", "load", "record", "report", "show"]


def load(path: str | Path) -> Bundle:
    """Opens a bundle.

    Raises:
        CommandError: the folder is no bundle, or part of it is missing or damaged.
    """
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
    from spark_prof.analyzers.summary import summarize
    from spark_prof.datasets.opened import ceilings_for, opened
    from spark_prof.notebook import NotebookReport
    from spark_prof.traces.bundle import Bundle

    named = source if isinstance(source, Bundle) else str(source)
    with nullcontext(source) if isinstance(source, Bundle) else opened(str(source)) as bundle:
        found = summarize(bundle, rank, measured=ceilings_for(bundle, rank))
    return NotebookReport.of(found, named, rank)


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
    from spark_prof.datasets.compared import read_side
    from spark_prof.notebook import NotebookComparison

    return NotebookComparison((compare_sides(read_side(str(a), rank), read_side(str(b), rank)),))


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

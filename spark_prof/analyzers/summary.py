"""The report of one rank of a bundle, and the rows that it sums up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pandas as pd

from spark_prof.analyzers.checked_report import CheckedReport
from spark_prof.analyzers.facts import RecordedFacts
from spark_prof.analyzers.invariants import Figures
from spark_prof.analyzers.model import Report
from spark_prof.analyzers.one_batch import OneBatchReport
from spark_prof.analyzers.recorded_report import RecordedReport
from spark_prof.analyzers.views.waterfall import whole
from spark_prof.errors import CommandError
from spark_prof.traces.benchmarks.load_test import BenchmarkResult
from spark_prof.traces.bundle import Bundle, table_file
from spark_prof.traces.measured import MeasuredMachine
from spark_prof.traces.readers.engine_log import EngineLog


@dataclass(frozen=True, eq=False)
class ReportWithRows:
    """A report whose topics are computed when they are read, and the rows that it sums up.

    summary_of(bundle).report.conversions.us
    """

    report: Report
    facts: RecordedFacts

    @property
    def kernels(self) -> pd.DataFrame:
        """What `place_kernels` returned, from own starts on, without layers that are not known."""
        return self.facts.kernels

    @property
    def steps(self) -> pd.DataFrame:
        """What `step_books` returned; of kernels without times what `timed_windows` did."""
        return self.facts.steps

    @property
    def sums(self) -> pd.DataFrame:
        """What `sums_of` returned, without layers that are not known."""
        return self.facts.sums

    @property
    def timed(self) -> bool:
        """Whether it is known when the kernels ran."""
        return self.facts.timed


def summarize(
    bundle: Bundle,
    rank: int | None = None,
    log: EngineLog | None = None,
    measured: MeasuredMachine | None = None,
    results: Sequence[BenchmarkResult] = (),
    batch: int | None = None,
) -> Report:
    """The whole report of one rank, which needs the bundle no more.

    Arguments and errors are those of `summary_of`.
    """
    return whole(summary_of(bundle, rank, log, measured, results, batch).report)


def summary_of(
    bundle: Bundle,
    rank: int | None = None,
    log: EngineLog | None = None,
    measured: MeasuredMachine | None = None,
    results: Sequence[BenchmarkResult] = (),
    batch: int | None = None,
) -> ReportWithRows:
    """The report of one rank of a bundle, the lowest if None, with the rows that it was made of.

    Its topics are read from the bundle when they are first asked for. Where several batch sizes
    were recorded, what it says of a decode step and a token is of the one with most of the time;
    its counts and sums are of all steps.

    Args:
        log: what the engine printed in the same run.
        measured: ceilings of its GPU that were measured; those of another GPU are not used.
        results: of load generators that saw the same server, beside those in the bundle.
        batch: leaves out steps in which other numbers of requests decode; None leaves out none.

    Raises:
        CommandError: the bundle has no such rank, no step of it, or none of that batch size.
    """
    if rank is None:
        rank = min(bundle.ranks, default=0)
    if rank not in bundle.ranks:
        ranks = ", ".join(map(str, bundle.ranks)) or "none"
        raise CommandError(f"{bundle.label} has no rank {rank}; it has {ranks}")
    if not bundle.meta.tables[table_file("steps", rank)]:
        raise CommandError(f"{bundle.label} has no step of rank {rank}; record again")
    facts = RecordedFacts(bundle, rank, batch, log, measured, results)
    report: Report = _checked(RecordedReport(facts))
    headline = report.steps.headline_and_screen
    if (
        batch is None
        and headline
        and headline.screen.batch is not None
        and report.steps.batches[1:]
    ):
        of_size = replace(facts, batch=headline.screen.batch, results=(), every_batch=facts)
        report = OneBatchReport(report, _checked(RecordedReport(of_size, report)))
    return ReportWithRows(report, facts)


def _checked(report: RecordedReport) -> CheckedReport:
    return CheckedReport(Figures(report, report.facts.kernel_times, report.facts.all_layers))

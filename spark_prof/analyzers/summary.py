"""The report of one rank of a bundle, and the rows that it sums up."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeVar

import pandas as pd

from spark_prof.analyzers.answers import answers_of
from spark_prof.analyzers.breakdown import ComponentRow, KernelRow, LayerRow, TypicalKernel
from spark_prof.analyzers.conversions.conversion_rows import AttributedConversion, Conversions
from spark_prof.analyzers.counters.counter_batches import Counters
from spark_prof.analyzers.facts import RecordedFacts
from spark_prof.analyzers.finding import Finding
from spark_prof.analyzers.findings.ranking import OF_ALL_STEPS, findings_of, ranked
from spark_prof.analyzers.invariants import TOPICS, Figures, checked
from spark_prof.analyzers.model import Answer, Invariant, LazyReport, Report
from spark_prof.analyzers.recorded_report import RecordedReport
from spark_prof.analyzers.roofline.roofline_rows import Roofline
from spark_prof.analyzers.shapes.shape_rows import Shapes
from spark_prof.analyzers.speculation.speculation_rows import Speculation
from spark_prof.analyzers.step_time import StepAccount
from spark_prof.analyzers.views.waterfall import keep, waterfall_of, whole
from spark_prof.errors import CommandError
from spark_prof.traces.benchmarks.load_test import BenchmarkResult
from spark_prof.traces.bundle import Bundle, table_file
from spark_prof.traces.measured import MeasuredMachine
from spark_prof.traces.readers.engine_log import EngineLog

Row = TypeVar("Row", ComponentRow, LayerRow, KernelRow, AttributedConversion)

_OF_A_STEP = ("decode_us_per_step", "decode_calls_per_step", "calls_per_step", "us_per_token")


class OneBatchReport(LazyReport):
    """The report of all steps, with what one batch size's says of a step and a token.

    Args:
        every_batch: the report of all steps.
        screen: that of the steps of the batch size with most of the time.
    """

    every_batch: Report
    screen: Report

    def __init__(self, every_batch: Report, screen: Report) -> None:
        super().__init__(every_batch)
        vars(self).update(every_batch=every_batch, screen=screen)

    @cached_property
    def accounts(self) -> tuple[StepAccount, ...]:
        """Those of all steps; the screen's size as its kernels and its roofline have it."""
        step, size = self.screen.decode_step, self.every_batch.steps.screen_batch
        rows = {(row.phase, row.batch_size): row for row in self.every_batch.accounts}
        if step and ("decode", size) in rows:
            rows["decode", size] = replace(step, batch_size=size)
        return tuple(rows.values())

    @cached_property
    def components(self) -> tuple[ComponentRow, ...]:
        """Kernel time by component, of all steps and of the screen's step."""
        return _a_step(self.every_batch.components, self.screen.components, lambda row: row.name)

    @cached_property
    def layers(self) -> tuple[LayerRow, ...]:
        """Kernel time by layer and component, of all steps and of the screen's step."""
        rows = self.every_batch.layers, self.screen.layers
        return _a_step(*rows, lambda row: (row.layer, row.component))

    @cached_property
    def kernels(self) -> tuple[KernelRow, ...]:
        """Kernel time by kernel and component, of all steps and of the screen's step."""
        rows = self.every_batch.kernels, self.screen.kernels
        return _a_step(*rows, lambda row: (row.name, row.component))

    @cached_property
    def conversions(self) -> Conversions:
        """What changing formats costs, in all steps and in a token of the screen."""
        every, screen = self.every_batch.conversions, self.screen.conversions
        return replace(
            every,
            us_per_token=screen.us_per_token,
            attributed=_a_step(every.attributed, screen.attributed, _use),
            padding=_a_step(every.padding, screen.padding, _use),
            repeated=screen.repeated,
        )

    @cached_property
    def typical(self) -> tuple[TypicalKernel, ...]:
        """The kernels of the screen's typical step of each phase."""
        return self.screen.typical

    @cached_property
    def roofline(self) -> Roofline | None:
        """What the screen's steps need at least."""
        return self.screen.roofline

    @cached_property
    def shapes(self) -> Shapes | None:
        """The launch shapes of the screen's decode steps."""
        return self.screen.shapes

    @cached_property
    def answers(self) -> tuple[Answer, ...]:
        """What the screen's steps say to the questions that people ask first."""
        return self.screen.answers

    @cached_property
    def speculation(self) -> Speculation | None:
        """Acceptance of all steps, with what drafts cost at the screen's batch size."""
        every, screen = self.every_batch.speculation, self.screen.speculation
        return every if every is None or screen is None else replace(every, cost=screen.cost)

    @cached_property
    def findings(self) -> tuple[Finding, ...]:
        """What is worth changing: in the screen's steps, and among the steps of all sizes."""
        findings = [
            *(f for f in self.every_batch.findings if f.id in OF_ALL_STEPS),
            *(f for f in self.screen.findings if f.id not in OF_ALL_STEPS),
        ]
        return ranked(findings, self, self.every_batch)


def _a_step(
    rows: Iterable[Row], screen: Iterable[Row], key: Callable[[Row], object]
) -> tuple[Row, ...]:
    """The rows of all steps, with the figures of a step and a token of the screen's."""
    of_key = {key(row): row for row in screen}
    changed: list[Row] = []
    for row in rows:
        names = [name for name in _OF_A_STEP if hasattr(row, name)]
        figures: dict[str, Any] = {n: getattr(of_key.get(key(row)), n, 0.0) for n in names}
        changed.append(replace(row, **figures))
    return tuple(changed)


def _use(row: AttributedConversion) -> object:
    return row.kind, row.name, row.component, row.consumer, row.after


class CheckedReport(LazyReport):
    """The report without each figure that fails a check, and what was checked.

    A topic is checked when it is first read, and no other topic for its sake.
    """

    def __init__(self, figures: Figures | RecordedReport) -> None:
        super().__init__(figures.report if isinstance(figures, Figures) else figures)
        vars(self).update(_figures=figures)

    @cached_property
    def figures(self) -> Figures:
        """What the checks look at: of a recording its sums, which the first check makes."""
        recorded: Figures | RecordedReport = vars(self)["_figures"]
        if isinstance(recorded, Figures):
            return recorded
        facts = recorded.facts
        return Figures(recorded, facts.placed, facts.all_layers, counted=facts.kernels_of_steps)

    @cached_property
    def accounts(self) -> tuple[StepAccount, ...]:
        """Where the time of steps and tokens goes."""
        return checked(self.figures, "accounts")[0].accounts

    @cached_property
    def components(self) -> tuple[ComponentRow, ...]:
        """Kernel time by component."""
        return checked(self.figures, "components")[0].components

    @cached_property
    def layers(self) -> tuple[LayerRow, ...]:
        """Kernel time by layer and component."""
        return checked(self.figures, "layers")[0].layers

    @cached_property
    def kernels(self) -> tuple[KernelRow, ...]:
        """Kernel time by kernel and component."""
        return checked(self.figures, "kernels")[0].kernels

    @cached_property
    def roofline(self) -> Roofline | None:
        """What the steps of each phase need at least."""
        report, rows = self._floors
        if report.drawn_step and all(row.ok is not False for row in rows):
            keep(self, waterfall_of(report))
        return report.roofline

    @cached_property
    def counters(self) -> Counters | None:
        """What hardware counters sampled."""
        return self._floors[0].counters

    @cached_property
    def conversions(self) -> Conversions:
        """What changing formats costs."""
        return checked(self.figures, "conversions")[0].conversions

    @cached_property
    def invariants(self) -> tuple[Invariant, ...]:
        """What was checked, and what of it fails."""
        return tuple(checked(self.figures)[1])

    @cached_property
    def findings(self) -> tuple[Finding, ...]:
        """What is worth changing."""
        return findings_of(self)

    @cached_property
    def answers(self) -> tuple[Answer, ...]:
        """What the run says to the questions that people ask first."""
        return answers_of(self)

    @cached_property
    def _floors(self) -> tuple[Report, list[Invariant]]:
        return checked(self.figures, "roofline")

    def failed(self, check: str) -> tuple[str, ...]:
        """What fails of the checks whose name begins so, a sentence each; only they are made."""
        topic = next((name for begin, name in TOPICS.items() if check.startswith(begin)), None)
        rows = checked(self.figures, topic)[1] if topic else self.invariants
        return tuple(row.text for row in rows if row.ok is False and row.id.startswith(check))


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
        """What `step_times` returned; of kernels without times what `timed_windows` did."""
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
    report: Report = CheckedReport(RecordedReport(facts))
    headline = report.steps.headline_and_screen
    if (
        batch is None
        and headline
        and headline.screen.batch is not None
        and report.steps.batches[1:]
    ):
        of_size = replace(facts, batch=headline.screen.batch, results=(), every_batch=facts)
        report = OneBatchReport(report, CheckedReport(RecordedReport(of_size, report)))
    return ReportWithRows(report, facts)

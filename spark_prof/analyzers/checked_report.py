"""A report without the figures that fail a check, and with what follows from the others."""

from __future__ import annotations

from functools import cached_property

from spark_prof.analyzers.answers import answers_of
from spark_prof.analyzers.breakdown import ComponentRow, KernelRow, LayerRow
from spark_prof.analyzers.conversions.conversion_rows import Conversions
from spark_prof.analyzers.counters.counter_rows import Counters
from spark_prof.analyzers.finding import Finding
from spark_prof.analyzers.findings.ranking import findings_of
from spark_prof.analyzers.invariants import TOPICS, Figures, checked
from spark_prof.analyzers.model import Answer, Invariant, LazyReport, Report
from spark_prof.analyzers.roofline.roofline_rows import Roofline
from spark_prof.analyzers.step_accounting import Books
from spark_prof.analyzers.step_time import Ledger
from spark_prof.analyzers.views.waterfall import keep, waterfall_of


class CheckedReport(LazyReport):
    """The report without each figure that fails a check, and what was checked.

    A topic is checked when it is first read, and no other topic for its sake.
    """

    figures: Figures

    def __init__(self, figures: Figures) -> None:
        super().__init__(figures.report)
        vars(self).update(figures=figures)

    @cached_property
    def books(self) -> tuple[Books, ...]:
        """How the time of all steps splits."""
        return checked(self.figures, "books")[0].books

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
    def tokens(self) -> tuple[Ledger, ...]:
        """Where the time of a step and a token goes."""
        return checked(self.figures, "tokens")[0].tokens

    @cached_property
    def roofline(self) -> Roofline | None:
        """What the steps of each phase need at least."""
        report, rows = self._floors
        if report.tokens and all(row.ok is not False for row in rows):
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

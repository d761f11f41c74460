"""The report of a recording of several batch sizes: a step and a token are those of one size."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import cached_property
from typing import Any, TypeVar

from spark_prof.analyzers.breakdown import ComponentRow, KernelRow, LayerRow, TypicalKernel
from spark_prof.analyzers.conversions.conversion_rows import AttributedConversion, Conversions
from spark_prof.analyzers.finding import Finding
from spark_prof.analyzers.findings.ranking import OF_ALL_STEPS, ranked
from spark_prof.analyzers.model import Answer, LazyReport, Report
from spark_prof.analyzers.roofline.roofline_rows import Roofline
from spark_prof.analyzers.shapes.shape_rows import Shapes
from spark_prof.analyzers.speculation.speculation_rows import Speculation

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
            charged=_a_step(every.charged, screen.charged, _use),
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

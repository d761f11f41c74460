"""What must hold in every report: a table of checks, and a report without the figures that fail.

Each check looks at figures that are there already, so that a mistake of attribution shows as what
it is instead of as an impossible number. A figure that fails is left out, and so is everything
that would be built on it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from typing import Any

import numpy as np
import pandas as pd

from spark_prof.analyzers.classify.classifier import short_name
from spark_prof.analyzers.layer_consistency import (
    WHOLE,
    LayerTables,
    found_layers,
    layers_alike,
    parts_of,
)
from spark_prof.analyzers.lookup import BLOCK
from spark_prof.analyzers.model import Broken, Invariant, LazyReport, Report
from spark_prof.analyzers.roofline.device_ceilings import (
    memory_us,
    surely_us,
    without_floors,
    without_step_floors,
)
from spark_prof.analyzers.step_time import StepAccount
from spark_prof.analyzers.views.waterfall import DIFFERENCES, waterfall_of
from spark_prof.arrays import Flags
from spark_prof.rules.gpus import find_gpu
from spark_prof.vocabulary import COMPONENTS

_MOST = 5  # lines that one check adds at most; the last one says how many more there are

_ROUNDING = 1e-9  # relative error of a sum of a million float64 numbers, with room to spare
_NS = 1e-3  # times are whole nanoseconds: each term of a sum may be off by as much, in us
_TIMES_OF_STEPS = ("step_us", "kernels_us", "union_us", "copies_us", "overlap_us", "gap_us")
_FIRST_KERNELS = 1 << 16


@dataclass(frozen=True, eq=False)
class Figures:
    """What the checks look at."""

    report: Report  # as it was recorded
    kernels: pd.DataFrame  # start_ns and end_ns of kernels, by start
    # The sums of the report's kernels, in all layers that were found, and the model's.
    layers: LayerTables
    counted: Flags | None = None  # which are of the analyzed steps, copies left out; None for all

    @cached_property
    def first_kernels(self) -> pd.DataFrame:
        """The first ones of the analyzed steps."""
        times = self.kernels[["start_ns", "end_ns"]]
        if self.counted is None:
            return times[:_FIRST_KERNELS]
        return times.iloc[np.flatnonzero(self.counted)[:_FIRST_KERNELS]]

    @cached_property
    def kernels_us(self) -> float:
        """The summed time of all kernels."""
        return float(self.layers.sums["ns"].sum()) / 1e3

    @cached_property
    def union_us(self) -> float:
        """How long at least one kernel ran."""
        start, end = (self.kernels[name].to_numpy() for name in ("start_ns", "end_ns"))
        reached, running_ns = np.iinfo(np.int64).min, 0
        for at in range(0, len(start), BLOCK):
            rows = slice(at, at + BLOCK)
            begins, ends = start[rows], end[rows]
            if self.counted is not None:
                begins, ends = begins[self.counted[rows]], ends[self.counted[rows]]
            if not len(begins):
                continue
            latest = np.maximum(np.maximum.accumulate(ends), reached)
            before = np.append(max(reached, int(begins[0])), latest[:-1])
            running_ns += (
                int(latest[-1]) - int(before[0]) - int(np.maximum(begins - before, 0).sum())
            )
            reached = int(latest[-1])
        return running_ns / 1e3

    @cached_property
    def floors(self) -> tuple[Report, list[Invariant]]:
        """The report without lower bounds that fail a check; its waterfall is drawn once."""
        return _without_broken(self, self.report, FLOOR_CHECKS, ())


@dataclass(frozen=True, eq=False)
class Checking:
    """What one check looks at."""

    figures: Figures
    report: Report  # without what failed the checks before this one
    tables: Collection[str]  # of the report, whose sums are looked at


@dataclass(frozen=True)
class InvariantCheck:
    """One thing that must hold."""

    id: str
    holds: str  # what must hold
    topics: Collection[str]  # of the report, that lose what fails, or the tolerance of which it is
    # Where it does not; None where there is nothing to look at.
    broken: Callable[[Checking], list[Broken] | None]
    # The report without the figures of those keys.
    without: Callable[[Report, Sequence[tuple[object, ...]]], Report]


def checked(figures: Figures, topic: str | None = None) -> tuple[Report, list[Invariant]]:
    """The report without what fails the checks of a topic, or all checks, and a row each check.

    checked(figures, "kernels")[0].kernels

    Args:
        topic: of the report, such as kernels; the others may still have what fails.
    """
    report, rows = figures.report, list[Invariant]()
    if topic is None or topic in _FLOORS:
        report, rows = figures.floors
    checks = [check for check in PART_CHECKS if topic is None or topic in check.topics]
    tables = TABLES if topic is None else _LOOKED_AT.get(topic, (topic,))
    report, part_rows = _without_broken(figures, report, checks, tables)
    return report, rows + part_rows


def _without_broken(
    figures: Figures, report: Report, checks: Iterable[InvariantCheck], tables: Collection[str]
) -> tuple[Report, list[Invariant]]:
    rows: list[Invariant] = []
    for check in checks:
        broken = check.broken(Checking(figures, report, tables))
        rows += _rows(check, broken)
        report = check.without(report, [one.key for one in broken or ()])
    return report, rows


def _rows(check: InvariantCheck, broken: Sequence[Broken] | None) -> list[Invariant]:
    if not broken:
        return [Invariant(check.id, None if broken is None else True, check.holds, "")]
    rows = [Invariant(check.id, False, one.text, one.where) for one in broken[:_MOST]]
    if len(broken) > _MOST:
        text = f"{len(broken) - _MOST} more of the same kind: {check.holds[0].lower()}"
        rows[-1] = Invariant(check.id, False, text + check.holds[1:], broken[_MOST].where)
    return rows


@dataclass(frozen=True)
class Whole:
    """A time and what it consists of, in us."""

    where: str  # its name in the report
    key: tuple[object, ...]  # the table of the report, and which row of it
    us: float
    terms: Sequence[float]  # what adds up to it
    times: Sequence[tuple[str, float]]  # everything in it that is a time, by name

    @property
    def adds_up(self) -> bool:
        """Whether the terms make the time, within a nanosecond a term."""
        largest = max(abs(self.us), sum(map(abs, self.terms)))
        return same(sum(self.terms), self.us, len(self.terms), largest)


def _wholes(checking: Checking) -> Iterator[Whole]:
    """Each time that has parts, of the tables that are looked at.

    The residual is no time, but what the parts lack.
    """
    report, tables = checking.report, checking.tables
    for row in report.accounts if "books" in tables else ():
        if (sums := row.sums) and row.batch_size is None:
            terms = [
                sums.kernels_us,
                sums.copies_us,
                -sums.overlap_us,
                sums.gap_us,
                sums.residual_us,
            ]
            times = [(name, float(getattr(sums, name))) for name in _TIMES_OF_STEPS]
            yield Whole(f"books: {row.phase}", ("books", row.phase), sums.step_us, terms, times)
    for row in report.typical_steps if "tokens" in tables else ():
        times = [(p.name, min(p.us, p.kernel_us, p.exclusive_us)) for p in row.parts]
        key = ("tokens", row.phase, row.batch_size)
        yield Whole(f"tokens: {row.phase}", key, row.step_us, [p.us for p in row.parts], times)
    if "floor" in tables:
        waterfall = waterfall_of(report)
        terms = [part.us for part in waterfall.parts]
        times = [
            (p.component or p.kind, p.us) for p in waterfall.parts if p.kind not in DIFFERENCES
        ]
        yield Whole("waterfall", ("floor",), waterfall.us, terms, times)
    rows_of: Mapping[str, Callable[[], list[tuple[str, float]]]] = {
        "components": lambda: [(r.name, r.us) for r in report.components],
        "layers": lambda: [(f"{r.layer}, {r.component}", r.us) for r in report.layers],
        "kernels": lambda: [(short_name(r.name), r.us) for r in report.kernels],
    }
    for table in (name for name in rows_of if name in tables):
        rows = rows_of[table]()
        yield Whole(table, (table,), checking.figures.kernels_us, [us for _, us in rows], rows)


def same(a: float, b: float, terms: int = 1, largest: float = 0.0) -> bool:
    """Whether two times are equal but for rounding, that of a sum of so many terms."""
    return abs(a - b) <= _tolerance(terms, max(largest, abs(a), abs(b)))


def _tolerance(terms: int, largest_us: float) -> float:
    return _NS * terms + _ROUNDING * largest_us


def _negative(checking: Checking) -> list[Broken]:
    steps = [row.sums.step_us for row in checking.report.accounts if row.sums]
    # More than rounding in a run that took so long.
    least = -_tolerance(1, max(steps, default=checking.figures.kernels_us))
    return [
        Broken(f"{where} takes {us:,.2f} us, which no time can be: it is left out.", where, w.key)
        for w in _wholes(checking)
        for name, us in w.times
        if us < least
        for where in [f"{w.where}, {name}"]
    ]


def _sums(checking: Checking) -> list[Broken]:
    return [
        Broken(
            f"The parts of {w.where} add up to {sum(w.terms):,.2f} us, not to {w.us:,.2f} us: they "
            "are left out.",
            w.where,
            w.key,
        )
        for w in _wholes(checking)
        if not w.adds_up
    ]


def _union(checking: Checking) -> list[Broken] | None:
    if (whole := checking.report.all_steps) is None:
        return None
    us, counted_us = checking.figures.union_us, whole.union_us
    if same(us, counted_us):
        return []
    text = f"Kernels ran in {us:,.2f} us of the window, {counted_us:,.2f} us are counted: left out."
    return [Broken(text, "time.union_us", ("books", "all"))]


def kernel_floors(report: Report, kernels: pd.DataFrame) -> list[Broken] | None:
    """Kernels that are faster than their bytes and their arithmetic allow."""
    roofline = report.roofline
    if roofline is None or not any(row.floor_us for p in roofline.phases for row in p.rows):
        return None
    clock, tick = _clock(report), _tick_us(kernels)
    broken = []
    for phase in roofline.phases:
        for row in phase.rows:
            least = surely_us(row, roofline.ceilings, clock) / row.calls
            if row.floor_us is None or least <= row.us + row.ahead_us + tick:
                continue
            name = f"{short_name(row.name)} ({row.role or row.component})"
            text = (
                f"{name} takes {row.us:,.2f} us a call in {phase.phase} steps, less than the "
                f"{least:,.2f} us that its bytes need at least: it reads other weights than those "
                "it is taken to read. Its lower bound is not known."
            )
            broken.append(Broken(text, f"roofline.phases.rows: {phase.phase}, {name}",
                                (phase.phase, *row.place)))  # fmt: skip
    return broken


def step_floors(report: Report) -> list[Broken] | None:
    """Phases whose median step is shorter than its bytes allow."""
    roofline = report.roofline
    if roofline is None or not any(p.floor_us and p.step_us for p in roofline.phases):
        return None
    return [
        Broken(
            f"A {phase.phase} step takes {phase.step_us:,.1f} us, less than the {least:,.1f} us "
            "that its bytes need at least: which weights it reads is not known. Its lower bound "
            "is not known.",
            f"roofline.phases: {phase.phase}",
            (phase.phase,),
        )
        for phase in roofline.phases
        for least in [memory_us(phase.streamed_bytes, roofline.ceilings)]
        if phase.floor_us and phase.step_us and least > phase.step_us
    ]


def _clock(report: Report) -> float:
    """Highest clock over the data sheet's; 1 where either is not known."""
    sheet = find_gpu(report.gpu.name, report.gpu.compute_capability)
    highest = report.gpu.clocks.highest_mhz if report.gpu.clocks else None
    if not sheet or not sheet.clock_hz or not highest:
        return 1.0
    return max(highest * 1e6 / sheet.clock_hz, 1.0)


def _tick_us(kernels: pd.DataFrame) -> float:
    """Step of the clock that times were read from: what a call may have taken longer."""
    took = (kernels["end_ns"] - kernels["start_ns"]).to_numpy()
    return float(np.gcd.reduce(took)) / 1e3 if len(took) else 0.0


def _without_floors(report: Report, keys: Sequence[tuple[object, ...]]) -> Report:
    if report.roofline is None:
        return report
    # Those that are within the tolerance change, too.
    report = LazyReport(report, roofline=without_floors(report.roofline, keys))
    return _without_weights(report, {part for phase, part, *_ in keys if phase == "decode"})


def _without_step_floors(report: Report, keys: Sequence[tuple[object, ...]]) -> Report:
    if report.roofline is None:
        return report
    phases = [phase for (phase,) in keys]
    report = LazyReport(report, roofline=without_step_floors(report.roofline, phases))
    return _without_weights(report, COMPONENTS) if "decode" in phases else report


def _without_weights(report: Report, components: Collection[object]) -> Report:
    """What counters read is not held against weights that a decode step does not read."""
    if report.counters is None:
        return report
    batches = tuple(
        replace(b, weights=tuple(row for row in b.weights if row.component not in components))
        for b in report.counters.batches
    )
    return LazyReport(report, counters=replace(report.counters, batches=batches))


def _without_parts(report: Report, keys: Sequence[tuple[object, ...]]) -> Report:
    if not keys:
        return report
    changed: dict[str, Any] = {n: () for n in ("components", "layers", "kernels") if (n,) in keys}
    if {"books", "tokens"} & {table for table, *_ in keys}:
        changed["accounts"] = tuple(_without_times(row, keys) for row in report.accounts)
    report = LazyReport(report, **changed)
    if ("floor",) not in keys or report.roofline is None:
        return report
    return _without_step_floors(report, [(p.phase,) for p in report.roofline.phases])


def _without_times(row: StepAccount, keys: Collection[tuple[object, ...]]) -> StepAccount:
    """The account without its sums or its typical step, where the keys name them."""
    if ("tokens", row.phase, row.batch_size) in keys:
        row = StepAccount(row.phase, row.batch_size, row.sums)
    wrong = ("books", "all") in keys or ("books", row.phase) in keys
    return replace(row, sums=None) if wrong else row


def _without_layer_counts(report: Report, keys: Sequence[tuple[object, ...]]) -> Report:
    """The report, whose layers lack those already, without what is counted or divided by layers.

    Of a check that fails in some components only what is counted of these.
    """
    if not keys:
        return report
    unknown = {component for _, component in chain.from_iterable(map(parts_of, keys))}

    def uncounted(account: StepAccount) -> StepAccount:
        parts = (
            replace(part, layers=0) if {WHOLE, part.name} & unknown else part
            for part in account.parts
        )
        return replace(account, parts=tuple(parts))

    conversions = report.conversions
    conversions = replace(
        conversions,
        attributed=tuple(replace(row, layers=0) for row in conversions.attributed),
        padding=tuple(replace(row, layers=0) for row in conversions.padding),
    )
    accounts = tuple(map(uncounted, report.accounts))
    return LazyReport(report, accounts=accounts, conversions=conversions)


_FLOORS = ("roofline", "counters")
_TIMES = ("accounts", "components", "layers", "kernels", *_FLOORS)
_LAYERS = ("accounts", "conversions")

TABLES = ("books", "tokens", "floor", "components", "layers", "kernels")
"""The tables of a report whose parts add up to something; floor is the waterfall."""

_LOOKED_AT: Mapping[str, Collection[str]] = {
    "accounts": ("books", "tokens"), **dict.fromkeys(_FLOORS, ("tokens", "floor")),
}  # fmt: skip
"""The tables that a topic stands on, where they are not the one of its name."""

TOPICS = {"floor-": "roofline", "layers-": "conversions"}
"""A topic that all checks are made for whose name begins so."""

FLOOR_CHECKS: tuple[InvariantCheck, ...] = (
    InvariantCheck(
        "floor-kernel",
        "No kernel is faster than its bytes and its arithmetic allow.",
        _FLOORS,
        lambda checking: kernel_floors(checking.report, checking.figures.first_kernels),
        _without_floors,
    ),
    InvariantCheck(
        "floor-step",
        "No step is faster than its bytes allow.",
        _FLOORS,
        lambda checking: step_floors(checking.report),
        _without_step_floors,
    ),
)  # fmt: skip
"""The checks of lower bounds, which come before those that the waterfall is drawn for."""

PART_CHECKS: tuple[InvariantCheck, ...] = (
    # What fails it is in no tolerance of the times after it.
    InvariantCheck("union-once", "What overlaps counts once over the whole window.", _TIMES, _union,
        _without_parts),
    InvariantCheck("no-negative", "No part of any time is negative.", _TIMES, _negative,
        _without_parts),
    InvariantCheck("adds-up", "Parts add up to the whole.", _TIMES, _sums, _without_parts),
    InvariantCheck(
        "layers-alike",
        "Layers of one kind run the same kernels.",
        _LAYERS,
        lambda checking: layers_alike(checking.figures.layers),
        _without_layer_counts,
    ),
    InvariantCheck(
        "layers-found",
        "The layers found are the layers of the model.",
        _LAYERS,
        lambda checking: found_layers(checking.figures.layers),
        _without_layer_counts,
    ),
)  # fmt: skip

CHECKS = FLOOR_CHECKS + PART_CHECKS

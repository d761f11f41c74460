"""What must hold in every report: a table of checks, and a report without the figures that fail.

Each check looks at figures that are there already, so that a mistake of attribution shows as what
it is instead of as an impossible number. A figure that fails is left out, and so is everything
that would be built on it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain

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
from spark_prof.analyzers.model import Broken, Invariant, Report
from spark_prof.analyzers.roofline.device_ceilings import (
    memory_us,
    surely_us,
    without_floors,
    without_step_floors,
)
from spark_prof.analyzers.step_time import LedgerRow
from spark_prof.analyzers.views.waterfall import DIFFERENCES, beside_waterfall, waterfall_of
from spark_prof.rules.gpus import find_gpu
from spark_prof.vocabulary import COMPONENTS

_MOST = 5  # lines that one check adds at most; the last one says how many more there are

_ROUNDING = 1e-9  # relative error of a sum of a million float64 numbers, with room to spare
_NS = 1e-3  # times are whole nanoseconds: each term of a sum may be off by as much, in us
_TIMES_OF_STEPS = ("step_us", "kernels_us", "union_us", "copies_us", "overlap_us", "gap_us")
_LOOKED_AT = 1 << 16


@dataclass(frozen=True, eq=False)
class Facts:
    """What the checks look at."""

    report: Report
    # Start_ns and end_ns of the kernels of the analyzed steps by start, copies left out.
    kernels: pd.DataFrame
    # The sums of the report's kernels, in all layers that were found, and the model's.
    layers: LayerTables


@dataclass(frozen=True)
class Check:
    """One thing that must hold."""

    id: str
    holds: str  # what must hold
    # Where it does not; None where there is nothing to look at.
    broken: Callable[[Facts], list[Broken] | None]
    # The report without the figures of those keys.
    without: Callable[[Report, Sequence[tuple[object, ...]]], Report]


def checked(facts: Facts) -> Report:
    """The report with what was checked, and without each figure that fails a check."""
    rows: list[Invariant] = []
    for check in CHECKS:
        broken = check.broken(facts)
        if not broken:
            rows.append(Invariant(check.id, None if broken is None else True, check.holds, ""))
        else:
            rows += [Invariant(check.id, False, b.text, b.where) for b in broken[:_MOST]]
        if broken and len(broken) > _MOST:
            text = f"{len(broken) - _MOST} more of the same kind: {check.holds[0].lower()}"
            rows[-1] = Invariant(check.id, False, text + check.holds[1:], broken[_MOST].where)
        report = check.without(facts.report, [b.key for b in broken or ()])
        facts = replace(facts, report=report)
    if any(row.ok is False for row in rows):
        return replace(facts.report, invariants=tuple(rows))
    return beside_waterfall(facts.report, invariants=tuple(rows))


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


def _wholes(facts: Facts) -> Iterator[Whole]:
    """Each time of a report that has parts; the residual is no time, but what the parts lack."""
    report = facts.report
    for b in report.books:
        terms = [b.kernels_us, b.copies_us, -b.overlap_us, b.gap_us, b.residual_us]
        times = [(name, float(getattr(b, name))) for name in _TIMES_OF_STEPS]
        yield Whole(f"books: {b.phase}", ("books", b.phase), b.step_us, terms, times)
    for t in report.tokens:
        times = [(r.name, min(r.charged_us, r.summed_us, r.alone_us)) for r in t.rows]
        terms = [r.charged_us for r in t.rows]
        key = ("tokens", t.phase, t.batch_size)
        yield Whole(f"tokens: {t.phase}", key, t.step_us, terms, times)
    kernels_us = float(facts.layers.sums["ns"].sum()) / 1e3
    layers = [(f"{r.layer}, {r.component}", r.us) for r in report.layers]
    waterfall = waterfall_of(report)
    terms = [part.us for part in waterfall.parts]
    times = [(p.component or p.kind, p.us) for p in waterfall.parts if p.kind not in DIFFERENCES]
    yield Whole("waterfall", ("floor",), waterfall.us, terms, times)
    for where, table, us, rows in (
        ("components", "components", kernels_us, [(r.name, r.us) for r in report.components]),
        ("layers", "layers", kernels_us, layers),
        ("kernels", "kernels", kernels_us, [(short_name(r.name), r.us) for r in report.kernels]),
    ):
        yield Whole(where, (table,), us, [us_of_row for _, us_of_row in rows], rows)


def same(a: float, b: float, terms: int = 1, largest: float = 0.0) -> bool:
    """Whether two times are equal but for rounding, that of a sum of so many terms."""
    return abs(a - b) <= _tolerance(terms, max(largest, abs(a), abs(b)))


def _tolerance(terms: int, largest_us: float) -> float:
    return _NS * terms + _ROUNDING * largest_us


def _negative(facts: Facts) -> list[Broken]:
    steps = [b.step_us for b in facts.report.books]
    wholes = list(_wholes(facts))
    # More than rounding in a run that took so long.
    least = -_tolerance(1, max(steps, default=wholes[-1].us))
    return [
        Broken(f"{where} takes {us:,.2f} us, which no time can be: it is left out.", where, w.key)
        for w in wholes
        for name, us in w.times
        if us < least
        for where in [f"{w.where}, {name}"]
    ]


def _sums(facts: Facts) -> list[Broken]:
    return [
        Broken(
            f"The parts of {w.where} add up to {sum(w.terms):,.2f} us, not to {w.us:,.2f} us: they "
            "are left out.",
            w.where,
            w.key,
        )
        for w in _wholes(facts)
        if not w.adds_up
    ]


def _union(facts: Facts) -> list[Broken] | None:
    if not facts.report.books:
        return None
    start, end = (facts.kernels[name].to_numpy() for name in ("start_ns", "end_ns"))
    reached = np.maximum.accumulate(end)
    idle = np.maximum(start[1:] - reached[:-1], 0).sum()
    us = float(reached[-1] - start[0] - idle) / 1e3 if len(start) else 0.0
    counted_us = facts.report.books[0].union_us
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


def step_floors(facts: Facts) -> list[Broken] | None:
    """Phases whose median step is shorter than its bytes allow."""
    roofline = facts.report.roofline
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
    took = (kernels["end_ns"] - kernels["start_ns"]).to_numpy()[:_LOOKED_AT]
    return float(np.gcd.reduce(took)) / 1e3 if len(took) else 0.0


def _without_floors(report: Report, keys: Sequence[tuple[object, ...]]) -> Report:
    if report.roofline is None:
        return report
    # Those that are within the tolerance change, too.
    report = replace(report, roofline=without_floors(report.roofline, keys))
    return _without_weights(report, {part for phase, part, *_ in keys if phase == "decode"})


def _without_step_floors(report: Report, keys: Sequence[tuple[object, ...]]) -> Report:
    if report.roofline is None:
        return report
    phases = [phase for (phase,) in keys]
    report = replace(report, roofline=without_step_floors(report.roofline, phases))
    return _without_weights(report, COMPONENTS) if "decode" in phases else report


def _without_weights(report: Report, components: Collection[object]) -> Report:
    """What counters read is not held against weights that a decode step does not read."""
    if report.counters is None:
        return report
    batches = tuple(
        replace(b, weights=tuple(row for row in b.weights if row.component not in components))
        for b in report.counters.batches
    )
    return replace(report, counters=replace(report.counters, batches=batches))


def _without_parts(report: Report, keys: Sequence[tuple[object, ...]]) -> Report:
    if not keys:
        return report
    books = tuple(b for b in report.books if ("books", b.phase) not in keys)
    if ("books", "all") in keys:
        books = ()
    tokens = tuple(t for t in report.tokens if ("tokens", t.phase, t.batch_size) not in keys)
    empty = {name: () for name in ("components", "layers", "kernels") if (name,) in keys}
    report = replace(report, books=books, tokens=tokens, **empty)  # type: ignore[arg-type]
    if ("floor",) not in keys or report.roofline is None:
        return report
    return _without_step_floors(report, [(p.phase,) for p in report.roofline.phases])


def _without_layer_counts(report: Report, keys: Sequence[tuple[object, ...]]) -> Report:
    """The report, whose layers lack those already, without what is counted or divided by layers.

    Of a check that fails in some components only what is counted of these.
    """
    if not keys:
        return report
    unknown = {component for _, component in chain.from_iterable(map(parts_of, keys))}

    def without(rows: Iterable[LedgerRow]) -> tuple[LedgerRow, ...]:
        return tuple(
            replace(row, layers=0, per_layer_us=None) if {WHOLE, row.name} & unknown else row
            for row in rows
        )

    tokens = tuple(replace(t, rows=without(t.rows)) for t in report.tokens)
    conversions = report.conversions
    conversions = replace(
        conversions,
        charged=tuple(replace(row, layers=0) for row in conversions.charged),
        padding=tuple(replace(row, layers=0) for row in conversions.padding),
    )
    return replace(report, tokens=tokens, conversions=conversions)


CHECKS: tuple[Check, ...] = (
    Check(
        "floor-kernel",
        "No kernel is faster than its bytes and its arithmetic allow.",
        lambda facts: kernel_floors(facts.report, facts.kernels),
        _without_floors,
    ),
    Check(
        "floor-step", "No step is faster than its bytes allow.", step_floors, _without_step_floors
    ),
    Check("union-once", "What overlaps counts once over the whole window.", _union, _without_parts),
    Check("no-negative", "No part of any time is negative.", _negative, _without_parts),
    Check("adds-up", "Parts add up to the whole.", _sums, _without_parts),
    Check(
        "layers-alike",
        "Layers of one kind run the same kernels.",
        lambda facts: layers_alike(facts.layers),
        _without_layer_counts,
    ),
    Check(
        "layers-found",
        "The layers found are the layers of the model.",
        lambda facts: found_layers(facts.layers),
        _without_layer_counts,
    ),
)

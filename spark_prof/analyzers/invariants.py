"""What must hold in every report: a table of checks, and a report without the figures that fail.

Each check looks at figures that are there already, so that a mistake of attribution shows as what
it is instead of as an impossible number. A figure that fails is left out, and so is everything
that would be built on it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace

import pandas as pd

from spark_prof.analyzers.floor_checks import kernel_floors, step_floors
from spark_prof.analyzers.layer_consistency import (
    LayerTables,
    found_layers,
    layers_alike,
)
from spark_prof.analyzers.model import Broken, Invariant, Report
from spark_prof.analyzers.roofline.sure_floors import (
    without_floors,
    without_step_floors,
)
from spark_prof.analyzers.time_parts import Whole, merged_us, same, wholes_of
from spark_prof.analyzers.views.waterfall import waterfall_of
from spark_prof.vocabulary import COMPONENTS

_MOST = 5
"""Lines that one check adds at most; the last one says how many more there are."""


@dataclass(frozen=True, eq=False)
class Facts:
    """What the checks look at.

    Attributes:
        report: the report, so far without what failed.
        kernels: start_ns and end_ns of the kernels of the analyzed steps by start, copies left out.
        layers: the sums of the report's kernels, in all layers that were found, and the model's.
    """

    report: Report
    kernels: pd.DataFrame
    layers: LayerTables


@dataclass(frozen=True)
class Check:
    """One thing that must hold.

    Attributes:
        id: its name in JSON.
        holds: what must hold.
        criterion: what is compared with what, tolerance included.
        broken: where it does not; None where there is nothing to look at.
        without: the report without the figures of those keys.
    """

    id: str
    holds: str
    criterion: str
    broken: Callable[[Facts], list[Broken] | None]
    without: Callable[[Report, Sequence[tuple[object, ...]]], Report]


def checked(facts: Facts) -> Report:
    """The report with what was checked, and without each figure that fails a check.

    >>> report = checked(facts)  # doctest: +SKIP
    >>> [row.text for row in report.invariants if row.ok is False]  # doctest: +SKIP
    """
    rows: list[Invariant] = []
    for check in CHECKS:
        found = check.broken(facts)
        if not found:
            rows.append(Invariant(check.id, None if found is None else True, check.holds, ""))
        else:
            rows += [Invariant(check.id, False, b.text, b.where) for b in found[:_MOST]]
        if found and len(found) > _MOST:
            text = f"{len(found) - _MOST} more of the same kind: {check.holds[0].lower()}"
            rows[-1] = Invariant(check.id, False, text + check.holds[1:], found[_MOST].where)
        report = check.without(facts.report, [b.key for b in found or ()])
        facts = replace(facts, report=report)
    return replace(facts.report, invariants=tuple(rows))


def _negative(facts: Facts) -> list[Broken] | None:
    steps = [b.step_us for b in facts.report.books]
    longest = max(steps, default=waterfall_of(facts.report).us)
    return [
        Broken(f"{where} takes {us:,.2f} us, which no time can be: it is left out.", where, w.key)
        for w in _wholes(facts)
        for name, us in w.negative(longest).items()
        for where in [f"{w.where}, {name}"]
    ]


def _sums(facts: Facts) -> list[Broken] | None:
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


def _wholes(facts: Facts) -> Iterator[Whole]:
    return wholes_of(facts.report, float(facts.layers.sums["ns"].sum()) / 1e3)


def _union(facts: Facts) -> list[Broken] | None:
    if not facts.report.books:
        return None
    us, counted_us = merged_us(facts.kernels), facts.report.books[0].union_us
    if same(us, counted_us):
        return []
    text = f"Kernels ran in {us:,.2f} us of the window, {counted_us:,.2f} us are counted: left out."
    return [Broken(text, "time.union_us", ("books", "all"))]


def _without_floors(report: Report, keys: Sequence[tuple[object, ...]]) -> Report:
    if report.roofline is None:
        return report
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
    """The report without those step times, ledgers or tables."""
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
    """The report, whose layers lack those already, without what is counted or divided by layers."""
    if not keys:
        return report
    tokens = tuple(
        replace(t, rows=tuple(replace(row, layers=0, per_layer_us=None) for row in t.rows))
        for t in report.tokens
    )
    found = report.conversions
    found = replace(
        found,
        charged=tuple(replace(row, layers=0) for row in found.charged),
        padding=tuple(replace(row, layers=0) for row in found.padding),
    )
    return replace(report, tokens=tokens, conversions=found)


CHECKS: tuple[Check, ...] = (
    Check(
        "floor-kernel",
        "No kernel is faster than its bytes and its arithmetic allow.",
        "Weights and KV cache of all its calls in a step, less the level-2 cache once, at the data "
        "sheet's bandwidth, against its time; a call may be longer by one tick of the clock.",
        lambda facts: kernel_floors(facts.report, facts.kernels),
        _without_floors,
    ),
    Check(
        "floor-step",
        "No step is faster than its bytes allow.",
        "Weights and KV cache of a step, less the level-2 cache once, at the data sheet's "
        "bandwidth, against the median step.",
        lambda facts: step_floors(facts.report),
        _without_step_floors,
    ),
    Check(
        "union-once",
        "What overlaps counts once over the whole window.",
        "Kernels of all steps merged, against the sum of what each step adds.",
        _union,
        _without_parts,
    ),
    Check(
        "no-negative",
        "No part of any time is negative.",
        "Step times and their parts, ledgers, components, layers, kernels and the waterfall; the "
        "residual is no part, but what the others lack.",
        _negative,
        _without_parts,
    ),
    Check(
        "adds-up",
        "Parts add up to the whole.",
        "Those of steps and ledgers to the step, components, layers and kernels to the kernel "
        "time, the waterfall to what was measured; within a nanosecond a term.",
        _sums,
        _without_parts,
    ),
    Check(
        "layers-alike",
        "Layers of one kind run the same kernels.",
        "Kernels of each component in all decode steps, among layers of one kind by configuration "
        "and live model; norms of the first and the last layer may be fused with what is outside.",
        lambda facts: layers_alike(facts.layers),
        _without_layer_counts,
    ),
    Check(
        "layers-found",
        "The layers found are the layers of the model.",
        "Layers of the report against those of the live model, else of the configuration.",
        lambda facts: found_layers(facts.layers),
        _without_layer_counts,
    ),
)

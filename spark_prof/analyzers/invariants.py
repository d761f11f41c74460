"""What must hold in every report: a table of checks, and a report without the figures that fail.

Each check looks at figures that are there already, so that a mistake of attribution shows as what
it is instead of as an impossible number. A figure that fails is left out, and so is everything
that would be built on it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from spark_prof.analyzers.ceilings.architecture import layer_kinds
from spark_prof.analyzers.ceilings.config import Config
from spark_prof.analyzers.findings.naming import short_name
from spark_prof.analyzers.model import Invariant, LayerRow, Report
from spark_prof.analyzers.roofline.sure_floors import (
    memory_us,
    surely_us,
    without_floors,
    without_step_floors,
)
from spark_prof.analyzers.views.waterfall import waterfall_of
from spark_prof.hardware import find_gpu

__all__ = ["CHECKS", "Broken", "Check", "Facts", "checked"]

_MOST = 5
"""Lines that one check adds at most; the last one says how many more there are."""
_MOST_LAYERS = 8
_ROUNDING = 1e-9
"""Relative error of a sum of a million float64 numbers, with room to spare."""
_NS = 1e-3
"""Times are whole nanoseconds: each term of a sum may be off by as much, in us."""
_LOOKED_AT = 1 << 16
_AT_THE_BORDER = {"norm"}
"""What compilers fuse with the embedding before the first layer, or with what follows the last."""


@dataclass(frozen=True, eq=False)
class Facts:
    """What the checks look at.

    Attributes:
        report: the report, so far without what failed.
        sums: what `breakdown.sums_of` returned.
        kernels: start_ns and end_ns of the kernels of the analyzed steps by start, copies left out.
        layers: layer and component of the `layers` table.
        config: the model's configuration as Hugging Face writes it.
    """

    report: Report
    sums: pd.DataFrame
    kernels: pd.DataFrame
    layers: pd.DataFrame
    config: Mapping[str, Any]


@dataclass(frozen=True)
class Broken:
    """One place where a check fails.

    Attributes:
        text: what is wrong, in a sentence.
        where: the part of the report, in the words of its JSON.
        key: the same for `Check.without`.
    """

    text: str
    where: str
    key: tuple[object, ...] = ()


@dataclass(frozen=True)
class Check:
    """One thing that must hold.

    Attributes:
        id: its name in JSON.
        holds: what must hold.
        told: how it is told, tolerance included.
        broken: where it does not; None where there is nothing to look at.
        without: the report without the figures of those keys.
    """

    id: str
    holds: str
    told: str
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


def _kernel_floors(facts: Facts) -> list[Broken] | None:
    roofline = facts.report.roofline
    if roofline is None or not any(row.floor_us for p in roofline.phases for row in p.rows):
        return None
    clock, tick = _clock(facts.report), _tick_us(facts.kernels)
    found = []
    for phase in roofline.phases:
        for row in phase.rows:
            least = surely_us(row, roofline.ceilings, clock) / row.calls
            if row.floor_us is None or least <= row.us + tick:
                continue
            name = f"{short_name(row.name)} ({row.role or row.component})"
            text = (
                f"{name} takes {row.us:,.2f} us a call in {phase.phase} steps, less than the "
                f"{least:,.2f} us that its bytes need at least: it reads other weights than those "
                "it is taken to read. Its floor is not known."
            )
            found.append(Broken(text, f"roofline.phases.rows: {phase.phase}, {name}",
                                (phase.phase, *row.place)))  # fmt: skip
    return found


def _step_floors(facts: Facts) -> list[Broken] | None:
    roofline = facts.report.roofline
    phases = [p for p in roofline.phases if p.floor_us and p.step_us] if roofline else []
    if roofline is None or not phases:
        return None
    return [
        Broken(
            f"A {phase.phase} step takes {step:,.1f} us, less than the {least:,.1f} us that its "
            "bytes need at least: which weights it reads is not known. Its floor is not known.",
            f"roofline.phases: {phase.phase}",
            (phase.phase,),
        )
        for phase in phases
        for step in [phase.step_us or 0.0]
        for least in [memory_us(phase.streamed_bytes, roofline.ceilings)]
        if least > step
    ]


def _negative(facts: Facts) -> list[Broken] | None:
    report = facts.report
    parts = ("step_us", "kernels_us", "union_us", "copies_us", "overlap_us", "gap_us")
    times: list[tuple[str, tuple[object, ...], float]] = [
        (f"books: {b.phase}, {part}", ("books", b.phase), getattr(b, part))
        for b in report.books
        for part in parts
    ]
    times += [
        (f"tokens: {t.phase}, {row.name}", ("tokens", t.phase, t.batch_size), us)
        for t in report.tokens
        for row in t.rows
        for us in [min(row.charged_us, row.summed_us, row.alone_us)]
    ]
    times += [("components: " + c.name, ("components",), c.us) for c in report.components]
    times += [(f"layers: {r.layer}, {r.component}", ("layers",), r.us) for r in report.layers]
    times += [("kernels: " + short_name(k.name), ("kernels",), k.us) for k in report.kernels]
    found = waterfall_of(report)
    times += [(f"waterfall: {p.component or p.kind}", ("floor",), p.us) for p in found.parts]
    whole = max((b.step_us for b in report.books), default=found.us)
    return [
        Broken(f"{where} takes {us:,.2f} us, which no time can be: it is left out.", where, key)
        for where, key, us in times
        if us < -(_NS + _ROUNDING * abs(whole))
    ]


def _sums(facts: Facts) -> list[Broken] | None:
    report = facts.report
    total = float(facts.sums["ns"].sum()) / 1e3
    sums: list[tuple[str, tuple[object, ...], list[float], float]] = [
        (f"books: {b.phase}", ("books", b.phase),
         [b.kernels_us, b.copies_us, -b.overlap_us, b.gap_us, b.residual_us], b.step_us)
        for b in report.books
    ]  # fmt: skip
    sums += [
        (f"tokens: {t.phase}", ("tokens", t.phase, t.batch_size),
         [row.charged_us for row in t.rows], t.step.mean)
        for t in report.tokens
    ]  # fmt: skip
    sums += [
        (name, (name,), [row.us for row in rows], total)
        for name, rows in (
            ("components", report.components), ("layers", report.layers),
            ("kernels", report.kernels),
        )
    ]  # fmt: skip
    found = waterfall_of(report)
    sums.append(("waterfall", ("floor",), [part.us for part in found.parts], found.us))
    return [
        Broken(
            f"The parts of {where} add up to {sum(parts):,.2f} us, not to {us:,.2f} us: they are "
            "left out.",
            where,
            key,
        )
        for where, key, parts, us in sums
        if abs(sum(parts) - us) > _NS * len(parts) + _ROUNDING * max(abs(us), sum(map(abs, parts)))
    ]


def _layers_alike(facts: Facts) -> list[Broken] | None:
    kinds = kinds_of(facts.config, facts.layers)
    calls = _calls_of_layers(facts.sums)
    alike: dict[str, dict[int, frozenset[tuple[str, int]]]] = defaultdict(dict)
    for layer, ran in calls.items():
        if layer in kinds:
            alike[kinds[layer]][layer] = frozenset(ran.items())
    if not any(len(layers) > 1 for layers in alike.values()):
        return None
    found = []
    for kind, layers in alike.items():
        ends = {min(calls), max(calls)}
        inner = [ran for layer, ran in layers.items() if layer not in ends]
        usual, _ = Counter(inner or layers.values()).most_common(1)[0]
        unlike = {
            layer: names - (_AT_THE_BORDER if layer in ends else set())
            for layer, ran in layers.items()
            for names in [{name for name, _ in ran ^ usual}]
        }
        others = sorted(layer for layer, names in unlike.items() if names)
        for own in dict.fromkeys(layers[layer] for layer in others):
            same = [layer for layer in others if layers[layer] == own]
            differ = sorted(set[str]().union(*(unlike[layer] for layer in same)))
            found.append(
                Broken(
                    f"Layers of one kind ({kind}) do not run the same: {_listed(same)} differ in "
                    f"{', '.join(differ)} from the {len(layers) - len(others)} others. Which "
                    "kernels are theirs is not known.",
                    f"layers: {_listed(same)}",
                    tuple(same),
                )
            )
    return found


def _layers_found(facts: Facts) -> list[Broken] | None:
    wanted = {int(n) for n in facts.layers["layer"].unique() if n >= 0}
    wanted = wanted or set(range(Config.of(facts.config).layers))
    found = {int(n) for n in facts.sums["layer"].unique() if n >= 0}
    if not wanted or not found:
        return None
    missing, extra = sorted(wanted - found), sorted(found - wanted)
    if not missing and not extra:
        return []
    parts = [f"{_listed(missing)} were not found"] if missing else []
    parts += [f"{_listed(extra)} are none of its"] if extra else []
    text = f"The model has {len(wanted)} layers, the report {len(found)}: {'; '.join(parts)}. "
    return [Broken(f"{text}Which kernels belong to which layer is not known.", "layers")]


def _union(facts: Facts) -> list[Broken] | None:
    if not facts.report.books:
        return None
    start, end = facts.kernels["start_ns"].to_numpy(), facts.kernels["end_ns"].to_numpy()
    us, told = 0.0, facts.report.books[0].union_us
    if len(start):
        reached = np.maximum.accumulate(end)
        idle = np.maximum(start[1:] - reached[:-1], 0).sum()
        us = float(reached[-1] - start[0] - idle) / 1e3
    if abs(us - told) <= _NS + _ROUNDING * us:
        return []
    text = f"Kernels ran in {us:,.2f} us of the window, but {told:,.2f} us are counted: left out."
    return [Broken(text, "time.union_us", ("books", "all"))]


def kinds_of(config: Mapping[str, Any], layers: pd.DataFrame) -> dict[int, str]:
    """The kind of each decoder layer, by configuration and live model; empty where unknown.

    Layers of one mixer may still be of two kinds: with experts, or dense as the first ones of
    DeepSeek's models. The `layers` table tells which; without it only a model without experts has
    kinds that are known.
    """
    read = Config.of(config)
    kinds = layer_kinds(read)
    blocks: dict[int, set[str]] = defaultdict(set)
    for layer, component in zip(layers["layer"], layers["component"], strict=True):
        if layer >= 0 and component in ("experts", "mlp", "attention", "ssm"):
            blocks[int(layer)].add(str(component))
    if blocks:
        return {
            layer: " ".join([*kinds[layer : layer + 1], *sorted(own)])
            for layer, own in blocks.items()
        }
    return {} if read.experts else dict(enumerate(kinds))


def _calls_of_layers(sums: pd.DataFrame) -> dict[int, dict[str, int]]:
    """By layer and component, how many kernels all decode steps ran."""
    rows = sums[(sums["phase"] == "decode").to_numpy() & (sums["layer"] >= 0).to_numpy()]
    found: dict[int, dict[str, int]] = defaultdict(dict)
    counts = rows.groupby(["layer", "component"], observed=True)[["calls"]].sum()
    for (layer, component), calls in counts.itertuples(name=None):
        found[int(layer)][str(component)] = int(calls)
    return found


def _listed(layers: Sequence[int]) -> str:
    shown = ", ".join(map(str, layers[:_MOST_LAYERS]))
    return f"{shown} and {len(layers) - _MOST_LAYERS} more" if len(layers) > _MOST_LAYERS else shown


def _clock(report: Report) -> float:
    """Highest clock over the data sheet's; 1 where either is not known."""
    known = find_gpu(report.gpu.name, report.gpu.compute_capability)
    highest = report.gpu.clocks.highest_mhz if report.gpu.clocks else None
    if not known or not known.clock_hz or not highest:
        return 1.0
    return max(highest * 1e6 / known.clock_hz, 1.0)


def _tick_us(kernels: pd.DataFrame) -> float:
    """Step of the clock that times were read from: what a call may have taken longer."""
    took = (kernels["end_ns"] - kernels["start_ns"]).to_numpy()[:_LOOKED_AT]
    return float(np.gcd.reduce(took)) / 1e3 if len(took) else 0.0


def _without_floors(report: Report, keys: Sequence[tuple[object, ...]]) -> Report:
    if report.roofline is None:
        return report
    return replace(report, roofline=without_floors(report.roofline, keys))


def _without_step_floors(report: Report, keys: Sequence[tuple[object, ...]]) -> Report:
    if report.roofline is None:
        return report
    phases = [phase for (phase,) in keys]
    return replace(report, roofline=without_step_floors(report.roofline, phases))


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


def _without_layers(report: Report, keys: Sequence[tuple[object, ...]]) -> Report:
    """Kernels of those layers are in no known one; of all layers where none is named."""
    if not keys:
        return report
    wrong = {layer for key in keys for layer in key}
    everything = not wrong
    sums: dict[tuple[int | None, str], LayerRow] = {}
    for row in report.layers:
        layer = None if everything or row.layer in wrong else row.layer
        place = layer, row.component
        before = sums.get(place, replace(row, us=0.0, kernels=0))
        us, kernels = before.us + row.us, before.kernels + row.kernels
        sums[place] = replace(before, layer=layer, us=us, kernels=kernels)
    tokens = tuple(
        replace(t, rows=tuple(replace(row, layers=0, per_layer_us=None) for row in t.rows))
        for t in report.tokens
    )
    order = sorted(sums.values(), key=lambda row: -1 if row.layer is None else row.layer)
    return replace(report, layers=tuple(order), tokens=tokens)


CHECKS: tuple[Check, ...] = (
    Check(
        "floor-kernel",
        "No kernel is faster than its bytes and its arithmetic allow.",
        "Weights and KV cache of all its calls in a step, less the level-2 cache once, at the data "
        "sheet's bandwidth, against its time; a call may be longer by one tick of the clock.",
        _kernel_floors,
        _without_floors,
    ),
    Check(
        "floor-step",
        "No step is faster than its bytes allow.",
        "Weights and KV cache of a step, less the level-2 cache once, at the data sheet's "
        "bandwidth, against the median step.",
        _step_floors,
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
        "Books, ledgers, components, layers, kernels and the waterfall; the residual is no part, "
        "but what the books lack.",
        _negative,
        _without_parts,
    ),
    Check(
        "adds-up",
        "Parts add up to the whole.",
        "Books and ledgers to the step, components, layers and kernels to the kernel time, the "
        "waterfall to what was measured; within a nanosecond a term.",
        _sums,
        _without_parts,
    ),
    Check(
        "layers-alike",
        "Layers of one kind run the same kernels.",
        "Kernels of each component in all decode steps, among layers of one kind by configuration "
        "and live model; norms of the first and the last layer may be fused with what is outside.",
        _layers_alike,
        _without_layers,
    ),
    Check(
        "layers-found",
        "The layers found are the layers of the model.",
        "Layers of the report against those of the live model, else of the configuration.",
        _layers_found,
        _without_layers,
    ),
)

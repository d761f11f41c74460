"""Sections about whether both sides say the same."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

from spark_prof.ab.gate import Figures, LayerError, Verdict
from spark_prof.ab.result import Result
from spark_prof.dashboards.ab_answer import agreement
from spark_prof.dashboards.formats import MISSING, clean, count, figure, share
from spark_prof.dashboards.section import Column, Section


def gate(result: Result) -> Section:
    """The logits of both sides over the same tokens, and what they must keep to."""
    columns = (
        Column(""),
        Column("Positions", "number"),
        Column("Agree", "number"),
        Column("Ties", "number"),
        Column("Rest", "number"),
        Column("KL mean", "number"),
        Column("KL worst", "number"),
        Column("Logit", "number"),
        Column("Verdict"),
    )
    rows = tuple(
        row for each in result.gates for row in _rows(f"batch {each.requests}", each.verdict)
    )
    intro = (
        "Both sides compute the same positions, each after the tokens that a chose. Agree: the "
        "largest logit is the same token's. Ties are so near that rounding decides them; rest: how "
        "many of the others agree. KL divergence in nats. Logit: the worst difference of one, in "
        "standard deviations of the logits. a rounded: a against itself, its embeddings off by one "
        "rounding, which shows how far that goes in this model.",
    )
    whys = dict.fromkeys(
        f"Bounds: {clean(each.verdict.bounds.why)}." for each in result.gates if each.verdict.bounds
    )
    return Section("ab_gate", "The same answers", columns, rows, (*intro, *whys))


def reasons(result: Result) -> Section:
    """Why the gate failed, and what is stated where it did not."""
    columns = (Column("Batch", "number"), Column("The gate says", "prose"))
    rows = tuple(
        dict.fromkeys(
            (count(each.requests), clean(line))
            for each in result.gates
            for line in (*each.verdict.reasons, *each.verdict.notes)
        )
    )
    return Section("ab_gate_says", "What the gate says", columns, rows)


def layers(result: Result) -> Section:
    """Swapped layers, each alone: one row a slot."""
    columns = (
        Column("Slot"),
        Column("Bits"),
        Column("Layers", "number"),
        Column("Median error", "number"),
        Column("Worst error", "number"),
        Column("Bound", "number"),
        Column("Worst layer, or those beyond the bound", "prose"),
    )
    slots: dict[tuple[str, str], dict[str, LayerError]] = {}
    for each in result.gates:
        for layer in each.verdict.layers:
            slots.setdefault((layer.slot, layer.bits), {}).setdefault(layer.layer, layer)
    rows = tuple(
        (clean(slot), bits, *_layer_row(tuple(found.values())))
        for (slot, bits), found in slots.items()
    )
    intro = (
        "Relative L2 distance of the result of one layer from that of vLLM's own kernel on the "
        "same input.",
    )
    return Section("ab_layer_errors", "Each swapped layer alone", columns, rows, intro)


def _rows(name: str, verdict: Verdict) -> Iterator[tuple[str, ...]]:
    yield (f"{name}, a and b", *_figures(verdict.figures), "passed" if verdict.passed else "FAILED")
    if verdict.floor:
        yield (f"{name}, a rounded", *_figures(verdict.floor), "")
    bounds = verdict.bounds
    if bounds:
        yield (
            f"{name}, bounds",
            "",
            "",
            "",
            share(bounds.clear_agreement) if bounds.clear_agreement else MISSING,
            *map(_small, (bounds.kl_mean, bounds.kl_worst, bounds.worst)),
            "",
        )


def _figures(found: Figures | None) -> tuple[str, ...]:
    if found is None:
        return (MISSING,) * 7
    broken = f" ({count(found.not_finite)} not finite)" if found.not_finite else ""
    return (
        f"{count(found.positions)}{broken}",
        agreement(found.agreement),
        count(found.near_ties),
        agreement(found.clear_agreement),
        *map(_small, (found.kl_mean, found.kl_worst, found.worst)),
    )


def _layer_row(found: tuple[LayerError, ...]) -> tuple[str, ...]:
    known = {layer.layer: layer.relative for layer in found if layer.relative is not None}
    bounds = [layer.bound for layer in found if layer.bound is not None]
    worst = max(known, key=lambda name: known[name], default="")
    failed = [layer.layer for layer in found if not layer.passed]
    return (
        count(len(found)),
        _small(median(known.values()) if known else None),
        _small(known.get(worst)),
        _small(max(bounds, default=None)),
        clean(", ".join(failed[:3]) + ", ..." * (len(failed) > 3) if failed else worst),
    )


def _small(value: float | None) -> str:
    return figure(value, ".2g")

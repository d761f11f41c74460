"""Sections about how a checkpoint is used: more sequences, a longer context, drafted tokens."""

from __future__ import annotations

from spark_prof.analyzers.ceilings.model import Ceilings
from spark_prof.dashboards.formats import MISSING, count, decimal_size, rate
from spark_prof.dashboards.section import Column, Section


def batches(found: Ceilings) -> Section:
    """More sequences at a time on the first GPU."""
    rows = tuple(
        (
            count(choice.step.question.batch),
            MISSING if choice.step.experts_hit is None else f"{choice.step.experts_hit:.1f}",
            decimal_size(choice.step.read),
            rate(choice.gpus[0].nearest.tokens_per_s),
            rate(choice.gpus[0].nearest.total_tokens_per_s),
            choice.gpus[0].nearest.limit,
        )
        for choice in found.batches
    )
    columns = (
        Column("Sequences", "number"),
        Column("Experts read", "number"),
        Column("A step reads", "number"),
        Column("Tokens/s each", "number"),
        Column("All", "number"),
        Column("Limit"),
    )
    return Section("ceilings_batches", "More sequences at a time", columns, rows, _on_which(found))


def contexts(found: Ceilings) -> Section:
    """A longer context on the first GPU."""
    plain = found.contexts[0].step.read if found.contexts else 0.0
    rows = tuple(
        (
            count(choice.step.question.context)
            if choice.step.question.context
            else "weights alone",
            decimal_size(choice.step.read - plain) if choice.step.question.context else MISSING,
            decimal_size(choice.step.read),
            rate(choice.gpus[0].nearest.tokens_per_s),
        )
        for choice in found.contexts
    )
    columns = (
        Column("Tokens of context", "number"),
        Column("KV cache and states", "number"),
        Column("A step reads", "number"),
        Column("Tokens/s each", "number"),
    )
    if not found.model.architecture.states:
        rows = ()
    return Section("ceilings_contexts", "A longer context", columns, rows, _on_which(found))


def drafts(found: Ceilings) -> Section:
    """Speculative decoding on the first GPU."""
    plain = found.drafts[0].step.read if found.drafts else 0.0
    rows = tuple(
        (
            count(choice.step.question.scheduled - 1),
            MISSING if choice.step.experts_hit is None else f"{choice.step.experts_hit:.1f}",
            decimal_size(choice.step.read),
            f"{choice.step.read / plain:.2f}" if plain else MISSING,
            rate(choice.gpus[0].nearest.tokens_per_s),
        )
        for choice in found.drafts
    )
    columns = (
        Column("Drafted tokens", "number"),
        Column("Experts read", "number"),
        Column("A step reads", "number"),
        Column("Pays above", "number"),
        Column("Tokens/s at most", "number"),
    )
    intro = (
        "A step must yield more tokens than stand under `Pays above` to be worth its reading; at "
        "most all drafts are accepted. What drafting itself reads comes on top.",
        *_on_which(found),
    )
    return Section("ceilings_drafts", "Speculative decoding", columns, rows, intro)


def _on_which(found: Ceilings) -> tuple[str, ...]:
    """On which GPU, and by which bandwidth, a table's figures are."""
    first = found.choices[0].gpus[0]
    return (f"{first.gpu} at {first.nearest.bandwidth / 1e9:,.0f} GB/s: {first.nearest.basis}.",)

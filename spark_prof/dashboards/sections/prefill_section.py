"""What reading prompts takes: its products against the peak, its attention, its chunks."""

from __future__ import annotations

from collections.abc import Iterator

from spark_prof.analyzers.context.robust_line import FEWEST
from spark_prof.analyzers.model import Report
from spark_prof.analyzers.prefill_costs import ChunkCost, Prefill, PromptAttention
from spark_prof.dashboards import cells
from spark_prof.dashboards.section import Section, listed, table
from spark_prof.dashboards.units import count, counted, figure, microseconds, operations, share

_WHY_NOT = {
    "few": f"fewer than {FEWEST} steps read a single prompt; record more of them",
    "narrow": "the prompts are about as long as each other; record short and long ones",
    "scatter": "the steps scatter more than that",
    "layers": "nothing tells which layers ran the kernels of attention",
}


def sections(report: Report) -> tuple[Section, ...]:
    """All there is about prefill; `--section prefill` shows it."""
    prefill = report.prefill
    if prefill is None:
        return ()
    return (listed("prefill", "Prefill", _sentences(prefill)), _products(prefill), _chunks(prefill))


def _sentences(prefill: Prefill) -> Iterator[str]:
    also = f" and {counted(prefill.mixed, 'step')} that decode as well" if prefill.mixed else ""
    yield f"{counted(prefill.steps, 'step')} that only read prompts{also}."
    if prefill.step_us is not None:
        floor = ""
        if prefill.floor_us is not None:
            floor = f" (its lower bound is {share(prefill.floor_us / prefill.step_us)} of that)"
        tokens = figure(prefill.tokens, ",.0f")
        yield (
            f"A step that only reads takes {microseconds(prefill.step_us)} in the median{floor}; "
            f"the mean one reads {tokens} tokens."
        )
    if prefill.steps and not prefill.products:
        yield (
            "Operations of its products are not known: nothing tells the shapes of the weights, or "
            "which kernels multiply with them."
        )
    if prefill.attention is not None:
        yield from _attention(prefill.attention)
    if prefill.budget is not None:
        yield (
            f"A batch holds {count(prefill.budget)} tokens at most (--max-num-batched-tokens): "
            "longer prompts are read in chunks."
        )
    yield from _beside(prefill)


def _attention(attention: PromptAttention) -> Iterator[str]:
    ends = f"{count(attention.shortest)} to {count(attention.longest)} tokens"
    if attention.pair_us is None or attention.longest_us is None:
        why = _WHY_NOT.get(attention.why_not, attention.why_not)
        yield f"How attention grows with the prompt ({ends}) is not told: {why}."
        return
    peak = (
        f", {share(attention.of_peak)} of the peak in {attention.precision}"
        if attention.of_peak
        else ""
    )
    rate = 1e6 * attention.operations / attention.pair_us if attention.pair_us > 0 else 0.0
    speed = f": {operations(rate)}op/s{peak}" if rate else ""
    yield (
        f"Attention's quadratic part, of {counted(attention.layers, 'layer')} and {ends}: "
        f"{microseconds(attention.pair_us)} for a million pairs of a token and one that it sees"
        f"{speed}; in the step with the most pairs {microseconds(attention.longest_us)}."
    )


def _beside(prefill: Prefill) -> Iterator[str]:
    if prefill.mixed and not prefill.chunks:
        yield (
            "What a chunk costs the decodes beside it is not told: too few mixed steps, or too few "
            "decode steps of their batch sizes."
        )
    elif prefill.chunks:
        most = max(prefill.chunks, key=lambda row: row.steps)
        yield (
            f"A chunk of {_span(most)} tokens makes each of the {most.decodes:.1f} decodes beside "
            f"it wait {microseconds(most.extra_us)} longer for its token, "
            f"{microseconds(1000 * most.token_us)} for 1,000 prompt tokens."
        )
        if (us := prefill.prefill_only_us) is not None:
            took = microseconds(1000 * us)
            yield f"Read alone, 1,000 prompt tokens take {took} in the median step."


def _products(prefill: Prefill) -> Section:
    columns = (
        cells.Text("Component", "component"),
        cells.Text("Weights", "what", optional=True),
        cells.Text("Arithmetic", "precision"),
        cells.Time("A step", "us"),
        cells.Formatted("Operations", lambda row: operations(row.operations, "op")),
        cells.Formatted("A second", lambda row: f"{operations(row.rate)}op/s"),
        cells.Share("Of the peak", "of_peak"),
        cells.Bar("", lambda row: row.of_peak or 0.0),
    )
    intro = (
        "In a mean step that only reads prompts. Operations follow from the weights' shapes and "
        "the tokens, a multiply-add counted as two; padding counts as none.",
    )
    title = "Products of prefill steps against the peak"
    return table("prefill-products", title, prefill.products, columns, intro)


def _chunks(prefill: Prefill) -> Section:
    columns = (
        cells.Formatted("Prompt tokens", _span),
        cells.Count("Steps", "steps"),
        cells.Ratio("Decodes", "decodes"),
        cells.Time("Decode step", "decode_us"),
        cells.Time("Mixed step", "step_us"),
        cells.Time("Longer by", "extra_us"),
        cells.Time("1,000 tokens", lambda row: 1000 * row.token_us),
    )
    intro = (
        "Mixed steps against the median decode step of their batch size: by so much the next token "
        "of each request that decodes comes later.",
    )
    return table(
        "prefill-chunks", "What a chunk costs the decodes beside it", prefill.chunks, columns, intro
    )


def _span(row: ChunkCost) -> str:
    return count(row.low) if row.low == row.high else f"{count(row.low)} to {count(row.high)}"

"""What reading prompts takes: its products against the peak, its attention, its chunks."""

from __future__ import annotations

from collections.abc import Iterator

from spark_prof.analyzers.context.robust_line import FEWEST
from spark_prof.analyzers.model import Report
from spark_prof.analyzers.prefill.prefill_rows import ChunkCost, Prefill, PromptAttention
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
    found = report.prefill
    if found is None:
        return ()
    return (listed("prefill", "Prefill", _sentences(found)), _products(found), _chunks(found))


def _sentences(found: Prefill) -> Iterator[str]:
    also = f" and {counted(found.mixed, 'step')} that decode as well" if found.mixed else ""
    yield f"{counted(found.steps, 'step')} that only read prompts{also}."
    if found.step_us is not None:
        floor = ""
        if found.floor_us is not None:
            floor = f" (its lower bound is {share(found.floor_us / found.step_us)} of that)"
        tokens = figure(found.tokens, ",.0f")
        yield (
            f"A step that only reads takes {microseconds(found.step_us)} in the median{floor}; "
            f"the mean one reads {tokens} tokens."
        )
    if found.steps and not found.products:
        yield (
            "Operations of its products are not known: nothing tells the shapes of the weights, or "
            "which kernels multiply with them."
        )
    if found.attention is not None:
        yield from _attention(found.attention)
    if found.budget is not None:
        yield (
            f"A batch holds {count(found.budget)} tokens at most (--max-num-batched-tokens): "
            "longer prompts are read in chunks."
        )
    yield from _beside(found)


def _attention(found: PromptAttention) -> Iterator[str]:
    ends = f"{count(found.shortest)} to {count(found.longest)} tokens"
    if found.pair_us is None or found.longest_us is None:
        why = _WHY_NOT.get(found.why_not, found.why_not)
        yield f"How attention grows with the prompt ({ends}) is not told: {why}."
        return
    peak = f", {share(found.of_peak)} of the peak in {found.precision}" if found.of_peak else ""
    rate = 1e6 * found.operations / found.pair_us if found.pair_us > 0 else 0.0
    speed = f": {operations(rate)}op/s{peak}" if rate else ""
    yield (
        f"Attention's quadratic part, of {counted(found.layers, 'layer')} and {ends}: "
        f"{microseconds(found.pair_us)} for a million pairs of a token and one that it sees"
        f"{speed}; in the step with the most pairs {microseconds(found.longest_us)}."
    )


def _beside(found: Prefill) -> Iterator[str]:
    if found.mixed and not found.chunks:
        yield (
            "What a chunk costs the decodes beside it is not told: too few mixed steps, or too few "
            "decode steps of their batch sizes."
        )
    elif found.chunks:
        most = max(found.chunks, key=lambda row: row.steps)
        yield (
            f"A chunk of {_span(most)} tokens makes each of the {most.decodes:.1f} decodes beside "
            f"it wait {microseconds(most.extra_us)} longer for its token, "
            f"{microseconds(1000 * most.token_us)} for 1,000 prompt tokens."
        )
        if found.alone_us is not None:
            yield (
                f"Read alone, 1,000 prompt tokens take {microseconds(1000 * found.alone_us)} in "
                "the median step."
            )


def _products(found: Prefill) -> Section:
    columns = (
        cells.Text("Component", "component"),
        cells.Text("Weights", "what", optional=True),
        cells.Text("Arithmetic", "precision"),
        cells.Time("A step", "us"),
        cells.Written("Operations", lambda row: operations(row.operations, "op")),
        cells.Written("A second", lambda row: f"{operations(row.rate)}op/s"),
        cells.Share("Of the peak", "of_peak"),
        cells.Bar("", lambda row: row.of_peak or 0.0),
    )
    intro = (
        "In a mean step that only reads prompts. Operations follow from the weights' shapes and "
        "the tokens, a multiply-add counted as two; padding counts as none.",
    )
    title = "Products of prefill steps against the peak"
    return table("prefill-products", title, found.products, columns, intro)


def _chunks(found: Prefill) -> Section:
    columns = (
        cells.Written("Prompt tokens", _span),
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
        "prefill-chunks", "What a chunk costs the decodes beside it", found.chunks, columns, intro
    )


def _span(row: ChunkCost) -> str:
    return count(row.low) if row.low == row.high else f"{count(row.low)} to {count(row.high)}"

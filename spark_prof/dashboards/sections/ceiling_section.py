"""A checkpoint: what a decode step reads of it, how fast that can be at most, and in which use."""

from __future__ import annotations

from operator import itemgetter

from spark_prof.analyzers.ceilings.ceiling_rows import (
    CheckpointCeilings,
    FormatChoice,
    GpuCeilings,
    Question,
)
from spark_prof.dashboards import cells
from spark_prof.dashboards.section import Column, Section, listed, table
from spark_prof.dashboards.units import (
    counted,
    decimal_size,
    figure,
    microseconds,
    rate,
    share,
    shorten,
)

_SHORT_NAMES = {
    "GB10 (DGX Spark)": "GB10",
    "RTX PRO 6000 Blackwell": "PRO 6000",
    "H100 SXM": "H100",
    "H200 SXM": "H200",
}
_BESIDE = ("GB10 (DGX Spark)", "RTX 5090", "RTX PRO 6000 Blackwell", "H100 SXM", "H200 SXM", "B200")
"""GPUs that have a column in the table of choices, after the first one."""

_MOST_UNPLACED = 8
_LONGEST = 80


def sections(ceilings: CheckpointCeilings, one_gpu: bool = False) -> tuple[Section, ...]:
    """Everything there is to say about a checkpoint, in reading order.

    The tables for one GPU are for the first of those that the ceilings were calculated for; there
    must be one. Where somebody named `one_gpu`, nothing is said about others.
    """
    return (
        _reads(ceilings),
        _choices(ceilings, one_gpu),
        _batches(ceilings),
        _contexts(ceilings),
        _drafts(ceilings),
        _left_out(ceilings),
        listed("ceilings_notes", "Caveats", ceilings.model.lost),
    )


def at_most(ceilings: CheckpointCeilings) -> str:
    """How fast the model can be on the first GPU as it is, and with the weights that read least."""
    first, *rest = ceilings.choices
    gpu, now = first.gpus[0].gpu, _tokens_per_s(first)
    if not now:
        return ""
    line = f"On {gpu} at most {rate(now)} tokens/s of each sequence"
    best = max(rest, key=_tokens_per_s, default=first)
    if _tokens_per_s(best) > now:
        line += f"; with {best.title} {rate(_tokens_per_s(best))}"
    return f"{line}: what a step reads bounds it."


def _reads(ceilings: CheckpointCeilings) -> Section:
    """What a step reads, component by component."""
    step = ceilings.choices[0].step
    bandwidth = ceilings.choices[0].gpus[0].nearest.bandwidth
    columns = (
        cells.Text("Component", "component"),
        cells.Text("Format", "format"),
        cells.DecimalBytes("Stored", "stored"),
        cells.DecimalBytes("A step reads", "read"),
        cells.Share("Share", lambda row: row.read / step.read if step.read else None),
        cells.Time(
            f"At {bandwidth / 1e9:,.0f} GB/s", lambda row: row.read / bandwidth * 1e6, optional=True
        ),
    )
    architecture = ceilings.model.architecture
    intro = [f"{architecture.name or 'A model'}, {_question_text(ceilings.question)}."]
    if step.experts_hit is not None:
        intro.append(
            f"A step of {counted(step.question.tokens, 'token')} reads {step.experts_hit:.1f} of "
            f"{architecture.experts} experts of a layer, if all are chosen alike."
        )
    rows = [row for row in step.rows if row.read or row.stored]
    stored = decimal_size(sum(row.stored for row in step.rows))
    last = microseconds(step.read / bandwidth * 1e6)
    total = ("all", "", stored, decimal_size(step.read), share(1.0), last)
    below = (total,) if rows else ()
    return table("step_bytes", "What a decode step reads", rows, columns, intro, below)


def _choices(ceilings: CheckpointCeilings, one_gpu: bool) -> Section:
    """The ceilings of every choice of formats, on the first GPU and a few others."""
    names = [gpu.gpu for gpu in ceilings.choices[0].gpus]
    gpu_names = list(dict.fromkeys([names[0], *(n for n in _BESIDE if n in names)]))
    gpu_names = gpu_names[: 1 if one_gpu else len(_BESIDE)]

    def on(name: str, optional: bool) -> Column:
        def speeds(choice: FormatChoice) -> str:
            return next(_both(gpu) for gpu in choice.gpus if gpu.gpu == name)

        return cells.Formatted(_SHORT_NAMES.get(name, name), speeds, optional=optional)

    columns = (
        cells.Text("Weights", "title"),
        cells.DecimalBytes("A step reads", "step.read"),
        *(on(name, index > 0) for index, name in enumerate(gpu_names)),
    )
    intro = (
        "Tokens/s of each sequence at most: by what a kernel that reads was seen to reach / by the "
        "data sheet; one figure is the data sheet's.",
        "What a choice does to the answers is not looked at.",
    )
    return table("ceilings", "How fast it can be at most", ceilings.choices, columns, intro)


def _batches(ceilings: CheckpointCeilings) -> Section:
    """More sequences at a time on the first GPU."""
    columns = (
        cells.Count("Sequences", "step.question.batch"),
        _EXPERTS,
        _READ,
        cells.Rate("Tokens/s each", _tokens_per_s),
        cells.Rate("All", lambda choice: choice.gpus[0].nearest.total_tokens_per_s),
        cells.Text("Limit", lambda choice: choice.gpus[0].nearest.limit),
    )
    title = "More sequences at a time"
    return table("ceilings_batches", title, ceilings.batches, columns, _on_which(ceilings))


def _contexts(ceilings: CheckpointCeilings) -> Section:
    """A longer context on the first GPU."""
    plain = ceilings.contexts[0].step.read if ceilings.contexts else 0.0
    columns = (
        cells.Count(
            "Tokens of context",
            lambda choice: choice.step.question.context or None,
            missing="weights alone",
        ),
        cells.DecimalBytes(
            "KV cache and states",
            lambda choice: choice.step.read - plain if choice.step.question.context else None,
        ),
        _READ,
        cells.Rate("Tokens/s each", _tokens_per_s),
    )
    rows = ceilings.contexts if ceilings.model.architecture.states else ()
    return table("ceilings_contexts", "A longer context", rows, columns, _on_which(ceilings))


def _drafts(ceilings: CheckpointCeilings) -> Section:
    """Speculative decoding on the first GPU."""
    plain = ceilings.drafts[0].step.read if ceilings.drafts else 0.0
    columns = (
        cells.Count("Drafted tokens", lambda choice: choice.step.question.scheduled - 1),
        _EXPERTS,
        _READ,
        cells.Ratio("Pays above", lambda choice: choice.step.read / plain if plain else None),
        cells.Rate("Tokens/s at most", _tokens_per_s),
    )
    intro = (
        "A step must yield more tokens than stand under `Pays above` to be worth its reading; at "
        "most all drafts are accepted. What drafting itself reads comes on top.",
        *_on_which(ceilings),
    )
    return table("ceilings_drafts", "Speculative decoding", ceilings.drafts, columns, intro)


def _tokens_per_s(choice: FormatChoice) -> float:
    return choice.gpus[0].nearest.tokens_per_s


_READ = cells.DecimalBytes("A step reads", "step.read")
_EXPERTS = cells.Formatted("Experts read", lambda choice: figure(choice.step.experts_hit, ".1f"))


def _on_which(ceilings: CheckpointCeilings) -> tuple[str, ...]:
    """On which GPU, and by which bandwidth, a table's figures are."""
    first = ceilings.choices[0].gpus[0]
    return (f"{first.gpu} at {first.nearest.bandwidth / 1e9:,.0f} GB/s: {first.nearest.basis}.",)


def _left_out(ceilings: CheckpointCeilings) -> Section:
    """Weights that no decode step of the model reads, and those that no rule places."""
    rows = [
        (
            "not read" if w.role == "encoder" else "read to draft tokens",
            w.role if w.component == "other" else f"{w.role}, {w.component}",
            w.format,
            float(w.bytes),
        )
        for w in ceilings.left_out
    ]
    rows += [
        ("counted as read", shorten(path, _LONGEST), "", size)
        for path, size in ceilings.model.unplaced[:_MOST_UNPLACED]
    ]
    columns = (
        cells.Text("How", itemgetter(0)),
        cells.Name("What", itemgetter(1)),
        cells.Text("Format", itemgetter(2)),
        cells.DecimalBytes("Stored", itemgetter(3)),
    )
    intro = ("Left out of a step, or not placed by any rule.",)
    return table("ceilings_left_out", "What else is stored", rows, columns, intro)


def _question_text(question: Question) -> str:
    """The question as a person would put it."""
    context = f"{counted(question.context, 'token')} of context each"
    parts = [
        counted(question.batch, "sequence"),
        context if question.context else "the weights alone, no KV cache",
    ]
    if question.scheduled > 1:
        parts.append(
            f"{question.scheduled} tokens of each in a step, {question.accepted:g} of them accepted"
        )
    if question.ranks > 1:
        parts.append(f"shared out among {question.ranks} GPUs, what they exchange not counted")
    return ", ".join(parts)


def _both(gpu: GpuCeilings) -> str:
    sheet = rate(gpu.data_sheet.tokens_per_s)
    return sheet if gpu.read is None else f"{rate(gpu.read.tokens_per_s)} / {sheet}"

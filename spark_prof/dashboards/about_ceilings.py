"""Sections about a checkpoint: what a decode step reads of it, and how fast that can be at most."""

from __future__ import annotations

from spark_prof.analyzers.ceilings.model import Ceilings, GpuCeilings, Question
from spark_prof.dashboards import about_use
from spark_prof.dashboards.formats import (
    MISSING,
    clean,
    count,
    counted,
    decimal_size,
    microseconds,
    rate,
    share,
    shorten,
)
from spark_prof.dashboards.section import Column, Section

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


def sections(found: Ceilings) -> tuple[Section, ...]:
    """Everything there is to say about a checkpoint, in reading order.

    The tables for one GPU are for the first of those that the ceilings were calculated for; there
    must be one.
    """
    return (
        _reads(found),
        _choices(found),
        _gpus(found),
        _sources(found),
        about_use.batches(found),
        about_use.contexts(found),
        about_use.drafts(found),
        _left_out(found),
        _notes(found),
    )


def _reads(found: Ceilings) -> Section:
    """What a step reads, component by component."""
    step = found.choices[0].step
    bandwidth = found.choices[0].gpus[0].nearest.bandwidth
    rows = tuple(
        (
            row.component,
            row.format,
            decimal_size(row.stored),
            decimal_size(row.read),
            share(row.read / step.read if step.read else None),
            microseconds(row.read / bandwidth * 1e6),
        )
        for row in step.rows
        if row.read or row.stored
    )
    if rows:
        stored = decimal_size(sum(row.stored for row in step.rows))
        last = microseconds(step.read / bandwidth * 1e6)
        rows += (("all", "", stored, decimal_size(step.read), share(1.0), last),)
    columns = (
        Column("Component"),
        Column("Format"),
        Column("Stored", "number"),
        Column("A step reads", "number"),
        Column("Share", "number"),
        Column(f"At {bandwidth / 1e9:,.0f} GB/s", "number", optional=True),
    )
    intro = [f"{clean(found.model.architecture.name) or 'A model'}, {_asked(found.question)}."]
    if step.experts_hit is not None:
        architecture = found.model.architecture
        intro.append(
            f"A step of {counted(step.question.tokens, 'token')} reads {step.experts_hit:.1f} of "
            f"{architecture.experts} experts of a layer, if all are chosen alike."
        )
    return Section("step_bytes", "What a decode step reads", columns, rows, tuple(intro))


def _choices(found: Ceilings) -> Section:
    """The ceilings of every choice of formats, on a few GPUs."""
    names = [gpu.gpu for gpu in found.choices[0].gpus]
    shown = list(dict.fromkeys([names[0], *(n for n in _BESIDE if n in names)]))[: len(_BESIDE)]
    rows = tuple(
        (
            choice.title,
            decimal_size(choice.step.read),
            *(_both(gpu) for name in shown for gpu in choice.gpus if gpu.gpu == name),
        )
        for choice in found.choices
    )
    columns = (
        Column("Weights"),
        Column("A step reads", "number"),
        *(
            Column(_SHORT_NAMES.get(name, name), "number", optional=index > 0)
            for index, name in enumerate(shown)
        ),
    )
    intro = (
        "Tokens/s of each sequence at most: by what a kernel that reads was seen to reach / by the "
        "data sheet; one figure is the data sheet's.",
        "What a choice does to the answers is not looked at.",
    )
    return Section("ceilings", "How fast it can be at most", columns, rows, intro)


def _gpus(found: Ceilings) -> Section:
    """The model as it is on every GPU, with where the bandwidth comes from."""
    rows = tuple(
        (
            gpu.gpu,
            f"{gpu.data_sheet.bandwidth / 1e9:,.0f}",
            MISSING if gpu.read is None else f"{gpu.read.bandwidth / 1e9:,.0f}",
            rate(gpu.data_sheet.tokens_per_s),
            MISSING if gpu.read is None else rate(gpu.read.tokens_per_s),
            gpu.data_sheet.limit,
            count(gpu.needed),
        )
        for gpu in found.choices[0].gpus
    )
    columns = (
        Column("GPU"),
        Column("GB/s", "number"),
        Column("Read", "number"),
        Column("Tokens/s", "number"),
        Column("By read", "number"),
        Column("Limit", optional=True),
        Column("GPUs to hold it", "number", optional=True),
    )
    intro = (
        "By the data sheet, and by what a kernel that only reads was seen to reach. Where one GPU "
        "cannot hold the weights its figures are those of one that could.",
    )
    return Section("ceilings_gpus", "On every GPU", columns, rows, intro)


def _sources(found: Ceilings) -> Section:
    """Who says so."""
    named: dict[str, list[str]] = {}
    for gpu in found.choices[0].gpus:
        for ceiling in filter(None, (gpu.data_sheet, gpu.read)):
            named.setdefault(ceiling.basis, []).append(gpu.gpu)
    rows = tuple((", ".join(gpus), source) for source, gpus in named.items())
    columns = (Column("Figures of", "prose"), Column("Source", "prose"))
    return Section("ceilings_sources", "Where these bandwidths come from", columns, rows)


def _left_out(found: Ceilings) -> Section:
    """Weights that no decode step of the model reads, and those that no rule places."""
    rows = [
        (
            "not read" if weights.role == "encoder" else "read to draft tokens",
            f"{weights.role}, {weights.component}"
            if weights.component != "other"
            else weights.role,
            weights.format,
            decimal_size(weights.bytes),
        )
        for weights in found.left_out
    ]
    rows += [
        ("counted as read", shorten(clean(path), _LONGEST), "", decimal_size(size))
        for path, size in found.model.unplaced[:_MOST_UNPLACED]
    ]
    columns = (Column("How"), Column("What", "name"), Column("Format"), Column("Stored", "number"))
    intro = ("Left out of a step, or not placed by any rule.",)
    return Section("ceilings_left_out", "What else is stored", columns, tuple(rows), intro)


def _notes(found: Ceilings) -> Section:
    rows = tuple((clean(text),) for text in found.model.lost)
    return Section("ceilings_notes", "Before believing these figures", (Column("", "prose"),), rows)


def _asked(question: Question) -> str:
    """The question as a person would put it."""
    parts = [counted(question.batch, "sequence")]
    parts.append(
        f"{counted(question.context, 'token')} of context each"
        if question.context
        else "the weights alone, no KV cache"
    )
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

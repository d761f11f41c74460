"""Sections about a checkpoint: what a decode step reads of it, and how fast that can be at most."""

from __future__ import annotations

from collections.abc import Sequence

from spark_prof.analyzers.ceilings.model import Ceiling, Ceilings, Choice, GpuCeilings, Question
from spark_prof.dashboards.formats import (
    MISSING,
    clean,
    count,
    counted,
    microseconds,
    share,
    shorten,
)
from spark_prof.dashboards.section import Column, Section

__all__ = ["sections"]

_SHORT_NAMES = {
    "GB10 (DGX Spark)": "GB10",
    "RTX PRO 6000 Blackwell": "PRO 6000",
    "H100 SXM": "H100",
    "H200 SXM": "H200",
}
_BESIDE = ("GB10 (DGX Spark)", "RTX 5090", "RTX PRO 6000 Blackwell", "H100 SXM", "H200 SXM", "B200")
"""GPUs that have a column in the table of choices; another one that is asked for comes first."""

_MOST_UNPLACED = 8
_LONGEST = 80


def sections(found: Ceilings) -> tuple[Section, ...]:
    """Everything there is to say about a checkpoint, in reading order.

    The tables for one GPU are for the first one that the ceilings were calculated for.
    """
    return (
        _reads(found),
        _choices(found),
        _gpus(found),
        _sources(found),
        _batches(found),
        _contexts(found),
        _drafts(found),
        _left_out(found),
        _notes(found),
    )


def _reads(found: Ceilings) -> Section:
    """What a step reads, component by component."""
    step = found.choices[0].step
    first = found.choices[0].gpus[0] if found.choices[0].gpus else None
    bandwidth = _best(first).bandwidth if first else 0.0
    rows = tuple(
        (
            row.component,
            row.format,
            _gigabytes(row.stored),
            _gigabytes(row.read),
            share(row.read / step.read if step.read else None),
            microseconds(row.read / bandwidth * 1e6 if bandwidth else None),
        )
        for row in step.rows
        if row.read or row.stored
    )
    total = ("all", "", _gigabytes(sum(row.stored for row in step.rows)), _gigabytes(step.read))
    if rows:
        last = microseconds(step.read / bandwidth * 1e6 if bandwidth else None)
        rows += ((*total, share(1.0), last),)
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
            f"{counted(step.question.tokens, 'token')} of a step: {step.experts_hit:.1f} of "
            f"{architecture.experts} experts of a layer are read, if all are chosen alike."
        )
    return Section("step_bytes", "What a decode step reads", columns, rows, tuple(intro))


def _choices(found: Ceilings) -> Section:
    """The ceilings of every choice of formats, on a few GPUs."""
    names = [gpu.gpu for gpu in found.choices[0].gpus]
    shown = [n for n in names[:1] if n not in _BESIDE] + [n for n in _BESIDE if n in names]
    shown = (shown or names)[: len(_BESIDE)]
    rows = tuple(
        (
            choice.title,
            _gigabytes(choice.step.read),
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
            _rate(gpu.data_sheet.tokens_per_s),
            MISSING if gpu.read is None else _rate(gpu.read.tokens_per_s),
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


def _batches(found: Ceilings) -> Section:
    """More sequences at a time on the first GPU."""
    rows = tuple(
        (
            count(choice.step.question.batch),
            MISSING if choice.step.experts_hit is None else f"{choice.step.experts_hit:.1f}",
            _gigabytes(choice.step.read),
            _rate(_best(choice.gpus[0]).tokens_per_s),
            _rate(_best(choice.gpus[0]).total_tokens_per_s),
            _best(choice.gpus[0]).limit,
        )
        for choice in _on_a_gpu(found.batches)
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


def _contexts(found: Ceilings) -> Section:
    """A longer context on the first GPU."""
    plain = found.contexts[0].step.read if found.contexts else 0.0
    rows = tuple(
        (
            count(choice.step.question.context)
            if choice.step.question.context
            else "weights alone",
            _gigabytes(choice.step.read - plain) if choice.step.question.context else MISSING,
            _gigabytes(choice.step.read),
            _rate(_best(choice.gpus[0]).tokens_per_s),
        )
        for choice in _on_a_gpu(found.contexts)
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


def _drafts(found: Ceilings) -> Section:
    """Speculative decoding on the first GPU."""
    plain = found.drafts[0].step.read if found.drafts else 0.0
    rows = tuple(
        (
            count(choice.step.question.scheduled - 1),
            MISSING if choice.step.experts_hit is None else f"{choice.step.experts_hit:.1f}",
            _gigabytes(choice.step.read),
            f"{choice.step.read / plain:.2f}" if plain else MISSING,
            _rate(_best(choice.gpus[0]).tokens_per_s),
        )
        for choice in _on_a_gpu(found.drafts)
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


def _left_out(found: Ceilings) -> Section:
    """Weights that no decode step of the model reads, and those that no rule places."""
    rows = [
        (
            "not read" if weights.role == "encoder" else "read to draft tokens",
            f"{weights.role}, {weights.component}",
            weights.format,
            _gigabytes(weights.bytes),
        )
        for weights in found.left_out
    ]
    rows += [
        ("counted as read", shorten(clean(path), _LONGEST), "", _gigabytes(size))
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


def _on_which(found: Ceilings) -> tuple[str, ...]:
    """On which GPU, and by which bandwidth, a table's figures are."""
    gpus = found.choices[0].gpus
    if not gpus:
        return ()
    best = _best(gpus[0])
    return (f"{gpus[0].gpu} at {best.bandwidth / 1e9:,.0f} GB/s: {best.basis}.",)


def _on_a_gpu(choices: Sequence[Choice]) -> list[Choice]:
    return [choice for choice in choices if choice.gpus]


def _best(gpu: GpuCeilings) -> Ceiling:
    """The nearest thing to what the GPU can do."""
    return gpu.read or gpu.data_sheet


def _both(gpu: GpuCeilings) -> str:
    sheet = _rate(gpu.data_sheet.tokens_per_s)
    return sheet if gpu.read is None else f"{_rate(gpu.read.tokens_per_s)} / {sheet}"


def _rate(tokens: float) -> str:
    return f"{tokens:,.1f}" if tokens < 1000 else f"{tokens:,.0f}"


def _gigabytes(number: float) -> str:
    """Writes bytes in units of 10^9, 10^6 or 10^3, as bandwidths are given."""
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if abs(number) >= 0.9995 * size:
            return f"{number / size:,.3f} {unit}" if unit == "GB" else f"{number / size:.1f} {unit}"
    return f"{number:.0f} B"

"""The kernels: which could be placed, which cost most, what they are made of, who chose them."""

from __future__ import annotations

from math import isfinite
from operator import attrgetter

from spark_prof.analyzers.classify.classifier import kernel_id
from spark_prof.analyzers.classify.code_rows import CodeRow
from spark_prof.analyzers.model import ModuleRow, Report
from spark_prof.dashboards import about_cells, cells
from spark_prof.dashboards.charts import LINES, SHADES, TEXT, Plot, new_figure
from spark_prof.dashboards.section import Column, Section, table
from spark_prof.dashboards.sections.run_section import on_cpu
from spark_prof.dashboards.units import (
    MISSING,
    count,
    counted,
    decimal_size,
    figure,
    microseconds,
    share,
)
from spark_prof.vocabulary import BASIS_CLASSES, EVIDENCE

_MOST_ROWS = 15
_MOST_OPCODES = 2
_SOURCES, _CONCLUDED, _GUESSED = (SHADES[1], ""), (SHADES[2], ""), (SHADES[2], "/")
_LOOKS = {
    "proven": _SOURCES,
    "derived": _CONCLUDED,
    "guessed": _GUESSED,
    "counter": _SOURCES,
    "sass": _CONCLUDED,
    "name": _GUESSED,
    "unknown": (LINES, ""),
}
"""Colour and pattern: what was seen is dark, a guess is hatched, what nothing tells is pale."""
_INSIDE = 0.08  # from which share on a word has room in its bar


def coverage(report: Report) -> Section:
    """Says of how much of the time the owner is proven, and how much could not be placed."""
    placed = report.coverage
    rows = [
        ("Layer", share(placed.layer), "no guess: in a layer, or in a component without one"),
        ("Component", share(placed.component), 'no guess: in a component other than "other"'),
    ]
    if report.gpu.vendor == "AMD":
        rows.append(("Engine", share(placed.engine), 'on an engine other than "unknown"'))
    elif not on_cpu(report):
        cores = "on tensor cores, CUDA cores or a copy engine"
        rows.append(("Engine", share(placed.engine), cores))
    columns = (Column("Placed"), Column("Share of the time", "number"), Column("", "prose"))
    unplaced = "Everything has a layer or a component"
    unplaced += f"; {share(placed.unknown)} lacks the other of the two." if placed.unknown else "."
    if placed.unplaced_us:
        unplaced = f"{microseconds(placed.unplaced_us)} have neither a layer nor a component."
    intro = (about_cells.owners(report), unplaced)
    filled_rows = tuple(rows) if report.kernels or report.components else ()
    return Section("coverage", "What could not be placed", columns, filled_rows, intro)


def kernels(report: Report) -> Section:
    """Lists the kernels that take most of a decode step, or of all steps, and what they ran on."""
    decode, us = report.steps.decode, attrgetter("decode_us_per_step")
    if not decode or not any(map(us, report.kernels)):
        decode, us = 0, attrgetter("us")
    every = sorted(filter(us, report.kernels), key=lambda row: -us(row))
    largest, whole = every[:_MOST_ROWS], sum(map(us, every))
    cpu, called = on_cpu(report), cells.called(row.name for row in largest)
    columns = (
        cells.Time("A step" if decode else "Time", us),
        cells.Share("Share", lambda row: us(row) / whole if decode else row.share),
        cells.Formatted(
            "Calls",
            lambda row: figure(row.decode_calls_per_step, ",.3g") if decode else count(row.calls),
            optional=True,
        ),
        cells.Text("Component", "component"),
        cells.Text(
            "Execution unit", lambda row: MISSING if cpu else ran_on(row.engine, row.precision)
        ),
        cells.Text("Evidence", lambda row: MISSING if cpu else row.evidence, optional=True),
        cells.Text("Id", lambda row: kernel_id(row.name), optional=True),
        cells.Name("Operator" if cpu else "Kernel", lambda row: called[row.name]),
    )
    intro = [f"In the typical one of {counted(decode, 'decode step')}."] if decode else []
    if rest := len(every) - len(largest):
        rest_us = whole - sum(map(us, largest))
        intro += [f"{count(rest)} more take {microseconds(rest_us)} together; JSON has them all."]
    title = f"Most expensive {'operators' if cpu else 'kernels'}"
    return table("kernels", title, largest, columns, intro)


def ran_on(engine: str, precision: str | None) -> str:
    """What a kernel ran on, and in which precision, in words."""
    return " ".join(filter(None, (engine, precision)))


def machine_code(report: Report) -> Section:
    """Lists the most expensive kernels with what tells where they run."""
    rows = report.machine_code[:_MOST_ROWS]
    called = cells.called(row.name for row in rows)
    columns = (
        cells.Time("Time", "us"),
        cells.Text("Built for", "target", missing=MISSING),
        cells.Text("Tensor-core instructions", products),
        cells.Text("Converts", _formats, optional=True, missing=MISSING),
        cells.SomeCount("Registers", "registers", optional=True),
        cells.Count("Local memory", lambda row: row.local_loads + row.local_stores, optional=True),
        cells.Name("Kernel", lambda row: called[row.name]),
    )
    intro = (
        "By the instructions of the code that was loaded. Local memory: instructions that load or "
        "store it, mostly registers that did not fit.",
    )
    return table("machine-code", "Machine code", rows, columns, intro)


def products(row: CodeRow) -> str:
    """The tensor-core instructions, the most frequent first."""
    opcodes = [product.opcode for product in row.products[:_MOST_OPCODES]]
    left = len(row.products) - len(opcodes)
    return ", ".join([*opcodes, *([f"{left} more"] if left > 0 else [])]) or MISSING


def _formats(row: CodeRow) -> str:
    parts = (("from", row.reads), ("to", row.writes))
    return " ".join(f"{word} {', '.join(names)}" for word, names in parts if names)


def copies(report: Report) -> Section:
    """Lists copies and memsets, which no sum of kernels contains."""
    copies = report.copies
    columns = (
        cells.Time("Time", "us"),
        cells.Count("Calls", "calls"),
        cells.DecimalBytes("Size", lambda row: row.bytes or None),
        cells.Text("Kind", "kind"),
        cells.Name("Copy", "name"),
    )
    whole = "of the time in which anything ran"
    part = "" if copies.share is None else f", {share(copies.share)} {whole}"
    moved = f" for {decimal_size(copies.bytes)}" if copies.bytes else ""
    intro = (f"{microseconds(copies.us)}{moved}{part}. Kernels and their sums do not contain it.",)
    rows = sorted(copies.items, key=lambda row: -row.us)[:_MOST_ROWS]
    return table("copies", "Copies beside the kernels", rows, columns, intro)


def modules(report: Report) -> Section:
    """Says how the weights are stored and which kernels vLLM chose for them."""
    stored = {row.component: row.dtype for row in report.streamed if row.quantized}

    def weight_format(row: ModuleRow) -> str:
        # Narrow weights are kept in words of integers, which say nothing of their format.
        packed = row.weight_dtype.startswith(("int", "uint"))
        return row.format or (stored.get(row.component, "") if packed else "") or row.weight_dtype

    columns = (
        cells.Text("Component", "component"),
        cells.Name("Kernel", "kernel"),
        cells.Text("Weights", weight_format),
        cells.Text("Shape", "shape"),
        cells.Count("Modules", "count"),
        cells.DecimalBytes("Size", lambda row: row.bytes or None),
        cells.Name("Quantization", "quant_method", optional=True),
        cells.Name("Type", "type", optional=True),
    )
    return table("modules", "Weights and the kernels chosen for them", report.modules, columns)


def evidence_shares(report: Report) -> dict[str, dict[str, float]]:
    """Shares of the kernel time by how its owner, and by what tells its engine, is known."""
    total = sum(row.us for row in report.kernels)
    owner = {name: getattr(report.coverage, name) for name in BASIS_CLASSES if name != "unknown"}
    owner = {name: value if isfinite(value) else 0.0 for name, value in owner.items()}
    shares = {"owner": owner | {"unknown": max(1 - sum(owner.values()), 0.0)}}
    if total and not on_cpu(report):
        engine_rows = [row for row in report.kernels if row.engine != "unknown"]
        sums = {
            n: sum(row.us for row in engine_rows if row.evidence == n) / total for n in EVIDENCE
        }
        del sums["unknown"]
        shares["engine"] = sums | {"unknown": max(1 - sum(sums.values()), 0.0)}
    return shares


def evidence_bars(report: Report) -> Plot:
    """Draws these shares, one bar for each question."""
    shares = evidence_shares(report)
    title = "What tells where a kernel belongs and what it runs on"
    drawn = new_figure(title, 190, barmode="stack")
    for word in dict.fromkeys(word for parts in shares.values() for word in parts):
        values = [parts.get(word, 0.0) for parts in shares.values()]
        drawn.add_bar(
            orientation="h",
            name=word,
            y=list(shares),
            x=[100 * value for value in values],
            text=[f"{word} {share(value)}" if value >= _INSIDE else "" for value in values],
            textposition="inside",
            insidetextanchor="middle",
            textangle=0,
            constraintext="none",
            textfont={"color": TEXT if word == "unknown" else "#101418"},
            marker={
                "color": _LOOKS[word][0],
                "line": {"width": 0},
                "pattern": {"shape": _LOOKS[word][1], "size": 6, "solidity": 0.15},
            },
            hovertext=[f"{word}: {share(value)} of the time" for value in values],
            hovertemplate="%{y}, %{hovertext}<extra></extra>",
        )
    drawn.update_xaxes(range=[0, 100], ticksuffix=" %", nticks=6)
    drawn.update_yaxes(type="category", autorange="reversed", showgrid=False)
    return drawn

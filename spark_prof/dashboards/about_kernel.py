"""What is said of one kernel: what it is, how it was launched, what it reads, who names it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from spark_prof.analyzers.breakdown import KernelRow
from spark_prof.analyzers.classify.classifier import find_rule
from spark_prof.analyzers.classify.model import CodeRow
from spark_prof.analyzers.counters.model import CounterRow
from spark_prof.analyzers.findings.naming import short_name
from spark_prof.analyzers.model import Finding, Report
from spark_prof.analyzers.roofline.model import RooflineRow
from spark_prof.analyzers.shapes.model import ShapeRow
from spark_prof.analyzers.views.kernel_calls import LaunchUse
from spark_prof.analyzers.views.kernel_table import KernelFacts
from spark_prof.dashboards.formats import (
    MISSING,
    bandwidth,
    clean,
    count,
    decimal_size,
    microseconds,
    share,
    size,
)
from spark_prof.dashboards.section import Column, Section


def facts(found: KernelFacts) -> Section:
    """Says what one kernel is, and what it does for one component."""
    row = found.row
    return _listed(
        "kernel",
        "What it is",
        (
            ("Component", row.component),
            ("Role", ", ".join(row.roles) or MISSING),
            ("Ran on", " ".join(word for word in (row.engine, row.precision or "") if word)),
            ("Known by", row.evidence),
            ("Weights stored as", row.weights or MISSING),
            ("Conversion", row.conversion or MISSING),
            ("Time", f"{microseconds(row.us)}, {share(row.share)} of all kernels"),
            ("Calls", f"{count(row.calls)}, {found.calls:,.3g} in a mean step"),
        ),
    )


def floor(row: RooflineRow | None) -> Section:
    """Says how far a kernel is from the least that its calls could take."""
    if row is None or row.needed_bytes is None:
        pairs: tuple[tuple[str, str], ...] = (("Floor", "nothing tells how many bytes it needs"),)
    else:
        least = "at least " if row.expected else ""
        read = MISSING
        if row.read_bytes is not None:
            read = f"{decimal_size(row.read_bytes)} a call, by {row.read_by}"
        pairs = (
            ("A call needs", f"{least}{decimal_size(row.needed_bytes)}: {row.what or 'unknown'}"),
            ("Found by", row.basis or MISSING),
            ("Takes", f"{microseconds(row.us)} a call, {bandwidth(row.bandwidth)}"),
            ("Floor", f"{microseconds(row.floor_us)}, limited by {row.limiter or 'unknown'}"),
            ("Of a reader's bandwidth", share(row.of_reached)),
            ("Of the data sheet's", share(row.of_data_sheet)),
            ("Above its floor", f"{microseconds(row.left_us)} a step"),
            ("Really read", read),
        )
    return _listed("floor", "Against its floor", pairs)


def _listed(name: str, title: str, pairs: Iterable[tuple[str, str]]) -> Section:
    rows = tuple((what, clean(value)) for what, value in pairs if value != MISSING)
    return Section(name, title, (Column("What"), Column("Value", "prose")), rows)


def reason(row: KernelRow) -> str:
    """Says why a kernel counts to its component."""
    rule = find_rule(row.name)
    if rule and rule.component == row.component:
        return f"Its name tells that it works for {row.component}: the family {rule.family}."
    told = "Its name tells no component"
    if rule and rule.component:
        told = f"Its name alone would make it {rule.component}"
    if row.component == "other":
        return f"{told}, and neither a module's call nor its place in the model does: it is other."
    return (
        f"{told}. It counts to {row.component} by its place: the module whose call launched it, or "
        "its turn among the model's kernels."
    )


def launches(uses: Sequence[LaunchUse], name: str, component: str, report: Report) -> Section:
    """Lists the shapes in which a kernel was launched, and what limits its occupancy.

    Args:
        uses: its shapes.
        name: of the kernel.
        component: of which shapes the occupancy is looked up first.
        report: whose shapes say it, of decode steps only.
    """
    known = [row for row in (report.shapes.rows if report.shapes else ()) if row.name == name]
    known.sort(key=lambda row: row.component != component)
    rows = tuple(_launch(use, known) for use in uses)
    columns = (
        Column("Calls", "number"),
        Column("Share", "number"),
        Column("Median call", "number"),
        Column("Grid"),
        Column("Block"),
        Column("Registers", "number"),
        Column("Shared memory", "number"),
        Column("Waves", "number"),
        Column("Busy", "number"),
        Column("Occupancy", "number"),
        Column("Limited by"),
    )
    intro = (
        "Busy is the share of the multiprocessors that have a block, occupancy the warps that one "
        "could hold, of launches in decode steps.",
    )
    return Section("launches", "How it is launched", columns, rows, intro)


def _launch(use: LaunchUse, known: Sequence[ShapeRow]) -> tuple[str, ...]:
    launch = use.launch
    own = (launch.grid, launch.block, launch.registers, launch.shared_bytes)
    row = next((r for r in known if (r.grid, r.block, r.registers, r.shared_bytes) == own), None)
    held = row.occupancy if row else None
    return (
        count(use.calls),
        share(use.share),
        microseconds(use.median_us),
        clean(launch.grid).replace(",", " x ") or MISSING,
        clean(launch.block).replace(",", " x ") or MISSING,
        count(launch.registers) if launch.registers else MISSING,
        size(launch.shared_bytes),
        f"{row.waves:.2f}" if row and row.waves is not None else MISSING,
        share(row.busy) if row else MISSING,
        share(held.share) if held else MISSING,
        " and ".join(held.limiters) if held else MISSING,
    )


def code(rows: Sequence[CodeRow]) -> Section:
    """Says what the machine code of a kernel is made of."""
    pairs: list[tuple[str, str]] = []
    for row in rows:
        pairs += [
            ("Built for", row.target or MISSING),
            ("Instructions", count(row.instructions)),
            ("Registers", count(row.registers) if row.registers else MISSING),
            ("Local memory", f"{count(row.local_loads)} loads, {count(row.local_stores)} stores"),
            *(("Tensor cores", f"{count(p.count)} x {p.opcode}") for p in row.products),
            ("Converts from", ", ".join(row.reads) or MISSING),
            ("Converts to", ", ".join(row.writes) or MISSING),
        ]
    intro = ("Counted in the code that was loaded, each instruction once however often it runs.",)
    return replace(_listed("machine-code", "Machine code", pairs), intro=intro)


def counters(report: Report, name: str) -> Section:
    """Says what hardware counters counted of a kernel, for each batch size."""
    found = report.counters
    batches = found.batches if found else ()
    rows = tuple(
        _counted(row, f"{count(batch.tokens)} in a step")
        for batch in batches
        for row in batch.rows
        if row.name == name
    )
    long = tuple(_counted(row, "single calls") for row in (found.long if found else ())
                 if row.name == name)  # fmt: skip
    columns = (
        Column("Tokens"),
        Column("Component"),
        Column("Reads", "number"),
        Column("Writes", "number"),
        Column("Bandwidth", "number"),
        Column("Tensor pipe", "number"),
        Column("Warps", "number"),
        Column("Multiprocessors", "number"),
    )
    return Section("counters", "Hardware counters, a call", columns, rows + long)


def _counted(row: CounterRow, tokens: str) -> tuple[str, ...]:
    return (
        tokens,
        clean(row.component),
        MISSING if row.read_bytes is None else decimal_size(row.read_bytes),
        MISSING if row.write_bytes is None else decimal_size(row.write_bytes),
        bandwidth(row.bandwidth),
        share(row.tensor_active),
        share(row.warps_active),
        share(row.sm_active),
    )


def streamed(report: Report, component: str) -> Section:
    """Lists the weights that a decode step streams for a component."""
    found = report.roofline
    rows = tuple(
        (decimal_size(row.bytes), share(row.share), clean(row.dtype) or MISSING,
         clean(row.part) or "all of them")
        for row in (found.weights if found else ())
        if row.component == component
    )  # fmt: skip
    columns = (
        Column("A step", "number"),
        Column("Of the step's bytes", "number"),
        Column("Stored as"),
        Column("Which weights"),
    )
    return Section("weights", f"Weights that {component} streams in a decode step", columns, rows)


def named_by(findings: Sequence[Finding], name: str) -> tuple[Finding, ...]:
    """The findings that name a kernel, by the short name that they use."""
    short = short_name(name)
    texts = ((finding, " ".join((finding.text, *finding.evidence))) for finding in findings)
    return tuple(finding for finding, text in texts if short and short in text)

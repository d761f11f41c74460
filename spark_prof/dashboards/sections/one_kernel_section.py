"""One kernel: what it is, how it was launched, what it reads, who names it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from operator import attrgetter

from spark_prof.analyzers.breakdown import KernelRow
from spark_prof.analyzers.classify.classifier import find_rule, kernel_id, short_name
from spark_prof.analyzers.classify.code_rows import CodeRow
from spark_prof.analyzers.finding import Finding
from spark_prof.analyzers.model import Report
from spark_prof.analyzers.roofline.roofline_rows import RooflineRow
from spark_prof.analyzers.shapes.shape_rows import SHAPE_COLUMNS, ShapeRow
from spark_prof.analyzers.views.kernel_calls import KernelFacts, LaunchUse
from spark_prof.dashboards import cells
from spark_prof.dashboards.section import Section, table
from spark_prof.dashboards.sections.counter_section import limiters
from spark_prof.dashboards.sections.kernel_section import ran_on
from spark_prof.dashboards.sections.roofline_section import needed
from spark_prof.dashboards.units import (
    MISSING,
    bandwidth,
    count,
    counted,
    decimal_size,
    microseconds,
    share,
)


def facts(kernel: KernelFacts) -> Section:
    """Says what one kernel is, and what it does for one component."""
    row = kernel.row
    word = {"all": "mean step", "unknown": "step"}.get(kernel.phase, f"{kernel.phase} step")
    step = f"a {word}"
    return _listed(
        "kernel",
        "What it is",
        (
            ("Id", kernel_id(row.name)),
            ("Component", row.component),
            ("Role", ", ".join(row.roles) or MISSING),
            ("Runs on", ran_on(row.engine, row.precision)),
            ("Evidence", row.evidence),
            ("Weights stored as", row.weights or MISSING),
            ("Conversion", row.conversion or MISSING),
            ("Time", f"{microseconds(kernel.us)} of {step}, {share(kernel.share)}"),
            ("Calls", f"{kernel.calls:,.4g} in {step}"),
            ("In all steps", f"{microseconds(row.us)}, {counted(row.calls, 'call')}"),
        ),
    )


def floor(row: RooflineRow | None) -> Section:
    """Says how far a kernel is from the least that its calls could take."""
    if row is None or row.needed_bytes is None:
        unknown = [("Lower bound", "nothing tells how many bytes it needs")]
        return _listed("floor", "Against its lower bound", unknown)
    read = MISSING
    if row.read_bytes is not None:
        read = f"{decimal_size(row.read_bytes)} a call, by {row.read_by}"
    pairs = (
        ("A call needs", f"{needed(row)}: {row.what or 'unknown'}"),
        ("Found by", row.basis or MISSING),
        ("Takes", f"{microseconds(row.us)} a call, {bandwidth(row.bandwidth)}"),
        ("Lower bound", f"{microseconds(row.floor_us)}, limited by {row.limiter or 'unknown'}"),
        ("Of a reader's bandwidth", share(row.of_reached)),
        ("Of the data sheet's", share(row.of_data_sheet)),
        ("Above its lower bound", f"{microseconds(row.left_us)} a step"),
        ("Really read", read),
    )
    return _listed("floor", "Against its lower bound", pairs)


def _listed(name: str, title: str, pairs: Iterable[tuple[str, str]]) -> Section:
    rows = [pair for pair in pairs if pair[1] != MISSING]
    columns = (cells.Text("What", lambda pair: pair[0]), cells.Prose("Value", lambda pair: pair[1]))
    return table(name, title, rows, columns)


def reason(row: KernelRow) -> str:
    """Says why a kernel counts to its component."""
    rule = find_rule(row.name)
    if rule and rule.component == row.component:
        return f"Its name tells that it works for {row.component}: the family {rule.family}."
    clause = "Its name tells no component"
    if rule and rule.component:
        clause = f"Its name alone would make it {rule.component}"
    if row.component == "other":
        return (
            f"{clause}, and neither a module's call nor its place in the model does: it is other."
        )
    return (
        f"{clause}. It counts to {row.component} by its place: the module whose call launched it, "
        "or its turn among the model's kernels."
    )


def launches(uses: Sequence[LaunchUse], name: str, component: str, report: Report) -> Section:
    """Lists the shapes in which a kernel was launched, and what limits its occupancy.

    The report says that of decode steps only; shapes of the component come first.
    """
    columns = (
        cells.Count("Calls", lambda pair: pair[0].calls),
        cells.Share("Share", lambda pair: pair[0].share),
        cells.Time("Median call", lambda pair: pair[0].median_us),
        cells.Text("Grid", lambda pair: pair[0].grid.replace(",", " x "), missing=MISSING),
        cells.Text("Block", lambda pair: pair[0].block.replace(",", " x "), missing=MISSING),
        cells.SomeCount("Registers", lambda pair: pair[0].registers),
        cells.Bytes("Shared memory", lambda pair: pair[0].shared_bytes),
        cells.Ratio("Waves", lambda pair: pair[1] and pair[1].waves),
        cells.Share("Busy", lambda pair: pair[1] and pair[1].busy),
        cells.Share(
            "Occupancy", lambda pair: (row := pair[1]) and row.occupancy and row.occupancy.share
        ),
        cells.Text("Limited by", lambda pair: limiters(pair[1]), missing=MISSING),
    )
    intro = (
        "Busy is the share of the multiprocessors that have a block, occupancy the warps that one "
        "could hold, of launches in decode steps.",
    )
    shape = attrgetter(*SHAPE_COLUMNS)
    rows_by_shape: dict[tuple[object, ...], ShapeRow] = {}
    every = report.shapes.rows if report.shapes else ()
    for row in sorted(every, key=lambda row: row.component != component):
        if row.name == name:
            rows_by_shape.setdefault(shape(row), row)
    pairs = [(use, rows_by_shape.get(shape(use))) for use in uses]
    return table("launches", "How it is launched", pairs, columns, intro)


def code(row: CodeRow) -> Section:
    """Says what the machine code of a kernel is made of."""
    pairs = [
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
    counters = report.counters
    rows = [
        (row, f"{count(batch.tokens)} in a step")
        for batch in (counters.batches if counters else ())
        for row in batch.rows
    ]
    rows += [(row, "single calls") for row in (counters.long if counters else ())]
    columns = (
        cells.Text("Tokens", lambda pair: pair[1]),
        cells.Text("Component", lambda pair: pair[0].component),
        cells.DecimalBytes("Reads", lambda pair: pair[0].read_bytes),
        cells.DecimalBytes("Writes", lambda pair: pair[0].write_bytes),
        cells.Bandwidth("Bandwidth", lambda pair: pair[0].bandwidth),
        cells.Share("Tensor pipe", lambda pair: pair[0].tensor_active),
        cells.Share("Warps", lambda pair: pair[0].warps_active),
        cells.Share("Multiprocessors", lambda pair: pair[0].sm_active),
    )
    mine = [pair for pair in rows if pair[0].name == name]
    return table("counters", "Hardware counters, a call", mine, columns)


def streamed(report: Report, component: str) -> Section:
    """Lists the weights that a decode step streams for a component."""
    columns = (
        cells.DecimalBytes("A step", "bytes"),
        cells.Share("Of the step's bytes", "share"),
        cells.Text("Stored as", "dtype", missing=MISSING),
        cells.Text("Which weights", "part", missing="all of them"),
    )
    rows = [row for row in report.streamed if row.component == component]
    return table("weights", f"Weights that {component} streams in a decode step", rows, columns)


def named_by(
    findings: Sequence[Finding], name: str, role: str = ""
) -> tuple[tuple[Finding, ...], tuple[Finding, ...]]:
    """The findings that use a kernel's short name: about this role of it, and about others.

    Kernels that differ in their template arguments only share a short name. All are of the first
    kind where none names the role.
    """
    short = short_name(name)
    named = [
        (finding, [kernel for kernel in finding.kernels if short_name(kernel.name) == short])
        for finding in findings
    ]
    about_kernel = tuple(finding for finding, same in named if short and same)
    roles = set(role.split(", ")) - {""}
    about_role = tuple(
        finding
        for finding, same in named
        if short and any(not roles.isdisjoint((k.component, *k.weights)) for k in same)
    )
    return (
        (about_role, tuple(f for f in about_kernel if f not in about_role))
        if about_role
        else (about_kernel, ())
    )

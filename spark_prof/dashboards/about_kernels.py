"""Sections about kernels: which could be placed, which cost most."""

from __future__ import annotations

from spark_prof.analyzers.breakdown import KernelRow
from spark_prof.analyzers.model import Report
from spark_prof.dashboards import about_cells
from spark_prof.dashboards.about_run import on_cpu
from spark_prof.dashboards.formats import MISSING, clean, count, microseconds, share, size
from spark_prof.dashboards.section import Column, Section

_MOST_ROWS = 15


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
    unplaced = (
        f"{microseconds(placed.unplaced_us)} have neither a layer nor a component."
        if placed.unplaced_us
        else "Everything has a layer or a component."
    )
    return Section(
        "coverage",
        "What could not be placed",
        columns,
        tuple(rows) if report.kernels or report.components else (),
        (about_cells.owners(report), unplaced),
    )


def _name_column(report: Report) -> Column:
    return Column("Operator" if on_cpu(report) else "Kernel", "name")


def kernels(report: Report) -> Section:
    """Lists the most expensive kernels and what they ran on."""
    shown = sorted(report.kernels, key=lambda row: -row.us)[:_MOST_ROWS]
    cpu = on_cpu(report)
    rows = tuple(
        (
            microseconds(row.us),
            share(row.share),
            count(row.calls),
            clean(row.component),
            MISSING if cpu else _engine(row),
            MISSING if cpu else clean(row.evidence),
            clean(row.name),
        )
        for row in shown
    )
    columns = (
        Column("Time", "number"),
        Column("Share", "number"),
        Column("Calls", "number", optional=True),
        Column("Component"),
        Column("Ran on"),
        Column("Known by", optional=True),
        _name_column(report),
    )
    unit = "operators" if cpu else "kernels"
    rest = len(report.kernels) - len(shown)
    rest_us = sum(row.us for row in report.kernels) - sum(row.us for row in shown)
    intro = (
        (f"{count(rest)} more take {microseconds(rest_us)} together; JSON has them all.",)
        if rest
        else ()
    )
    return Section("kernels", f"Most expensive {unit}", columns, rows, intro)


def _engine(row: KernelRow) -> str:
    return clean(" ".join(part for part in (row.engine, row.precision) if part))


def copies(report: Report) -> Section:
    """Lists copies and memsets, which no sum of kernels contains."""
    found = report.copies
    shown = sorted(found.items, key=lambda row: -row.us)[:_MOST_ROWS]
    rows = tuple(
        (
            microseconds(row.us),
            count(row.calls),
            size(row.bytes) if row.bytes else MISSING,
            clean(row.kind),
            clean(row.name),
        )
        for row in shown
    )
    columns = (
        Column("Time", "number"),
        Column("Calls", "number"),
        Column("Size", "number"),
        Column("Kind"),
        Column("Copy", "name"),
    )
    whole = "of the time in which anything ran"
    part = "" if found.share is None else f", {share(found.share)} {whole}"
    moved = f" for {size(found.bytes)}" if found.bytes else ""
    intro = (f"{microseconds(found.us)}{moved}{part}. Kernels and their sums do not contain it.",)
    return Section("copies", "Copies beside the kernels", columns, rows, intro)


def modules(report: Report) -> Section:
    """Says how the weights are stored and which kernels vLLM chose for them."""
    rows = tuple(
        (
            clean(row.component),
            clean(row.kernel),
            clean(row.format or row.weight_dtype),
            clean(row.shape),
            count(row.count),
            size(row.bytes) if row.bytes else MISSING,
            clean(row.quant_method),
            clean(row.type),
        )
        for row in report.modules
    )
    columns = (
        Column("Component"),
        Column("Kernel", "name"),
        Column("Weights"),
        Column("Shape"),
        Column("Modules", "number"),
        Column("Size", "number"),
        Column("Quantization", "name", optional=True),
        Column("Type", "name", optional=True),
    )
    return Section("modules", "Weights and the kernels chosen for them", columns, rows)

"""Sections about format conversions: what they cost and for what, and which cost no token."""

from __future__ import annotations

from spark_prof.analyzers.conversions.conversion_rows import AttributedConversion
from spark_prof.analyzers.model import Report
from spark_prof.dashboards.formats import (
    MISSING,
    clean,
    count,
    counted,
    microseconds,
    nothing_as_missing,
    share,
)
from spark_prof.dashboards.section import Column, Section

_MOST_ROWS = 15


def charged(report: Report) -> Section:
    """Lists conversions with the kernel that each works for, the most expensive first."""
    found = report.conversions
    shown = found.charged[:_MOST_ROWS]
    by_token = any(row.us_per_token is not None for row in shown)
    rows = tuple(
        (
            nothing_as_missing(row.us_per_token or 0.0),
            f"{row.calls_per_step:,.3g}" if row.calls_per_step else MISSING,
            _per_layer(row),
            microseconds(row.us),
            nothing_as_missing(row.prefill_us),
            clean(row.kind),
            clean(row.component),
            clean(row.consumer or MISSING),
            clean(row.name),
        )
        for row in shown
    )
    columns = (
        Column("A token", "number"),
        Column("A step", "number"),
        Column("A layer", "number", optional=True),
        Column("All steps", "number"),
        Column("Prefill", "number", optional=True),
        Column("Conversion"),
        Column("For"),
        Column("Read by", "name"),
        Column("Kernel", "name"),
    )
    sentence = f"{microseconds(found.us)}, {share(found.share)} of the time"
    if by_token:
        sentence = f"{microseconds(found.us_per_token)} of each token, {sentence} in all"
    intro = [
        f"{sentence}, go to work that only changes a format. It is charged to the kernel that "
        "reads the result: the next one of its component on its stream."
    ]
    if rest := len(found.charged) - len(shown):
        intro.append(f"{counted(rest, 'more row')} in JSON.")
    return Section("conversions", "Format conversions", columns, rows, tuple(intro))


def _per_layer(row: AttributedConversion) -> str:
    if not row.layers or row.us_per_token is None:
        return MISSING
    return nothing_as_missing(row.us_per_token / row.layers)


def others(report: Report) -> Section:
    """Lists conversions whose time is in no sum: PyTorch's pads, fused ones, those of load time."""
    found = report.conversions
    padding = [
        ("by order", row.kind, row.component, row.calls, row.us, row.name)
        for row in found.padding[:_MOST_ROWS]
    ]
    fused = [
        ("fused", row.kind, row.component, row.calls, row.us, row.name)
        for row in sorted(found.fused, key=lambda row: -row.us)[:_MOST_ROWS]
    ]
    loading = [
        ("outside the steps" if row.outside == row.calls else "load time",
         row.kind, "", row.calls, row.us, row.name)
        for row in found.load_time[:_MOST_ROWS]
    ]  # fmt: skip
    rows = tuple(
        (clean(how), clean(kind), clean(component), count(calls), microseconds(us), clean(name))
        for how, kind, component, calls, us, name in (*padding, *fused, *loading)
    )
    columns = (
        Column("How"),
        Column("Conversion"),
        Column("In"),
        Column("Calls", "number"),
        Column("Time", "number"),
        Column("Kernel", "name"),
    )
    intro = (
        "Only the order of kernels tells what PyTorch's pad launches. Fused kernels convert beside "
        "their own work, and nothing tells how their time splits. No token waits for what runs at "
        "load time or outside the steps.",
    )
    return Section("other_conversions", "Conversions that are not counted", columns, rows, intro)


def repeated(report: Report) -> Section:
    """Lists activations that are quantized once for each consumer instead of once."""
    rows = tuple(
        (
            microseconds(row.extra_us),
            count(row.extra),
            count(row.calls),
            clean(", ".join(row.components)),
            count(row.step),
            clean(row.name),
        )
        for row in report.conversions.repeated
    )
    columns = (
        Column("In vain", "number"),
        Column("Calls in vain", "number"),
        Column("Calls", "number"),
        Column("Read by"),
        Column("Step", "number"),
        Column("Kernel", "name"),
    )
    intro = ("In one decode step: what is quantized again that had been quantized already.",)
    return Section("repeated", "Quantized once for each consumer", columns, rows, intro)

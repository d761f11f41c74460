"""Sections about floors: what steps need at least, how far kernels are from it, and bytes."""

from __future__ import annotations

from spark_prof.analyzers.model import Report
from spark_prof.analyzers.roofline.model import (
    Ceilings,
    Roofline,
    RooflinePhase,
    RooflineRow,
    StreamedWeights,
)
from spark_prof.dashboards.formats import (
    MISSING,
    bandwidth,
    clean,
    microseconds,
    operations,
    share,
    size,
)
from spark_prof.dashboards.section import Column, Section

__all__ = ["floors", "kernels", "streamed"]

_TITLE = "The least that steps could take"
_MOST_ROWS = 12
_LEAST_LEFT = 0.005
"""Share of the step's kernel time above its floor below which a kernel is not listed."""


def floors(report: Report) -> Section:
    """Holds what the steps of each phase need against what they take."""
    found = report.roofline
    phases = found.phases if found else ()
    if found and not any(phase.needed_bytes for phase in phases):
        # A section says something only in rows; without figures the reason is what there is.
        reasons = tuple((clean(note),) for note in found.notes)
        return Section("floors", _TITLE, (Column("", "prose"),), reasons)
    rows = tuple(
        (
            phase.phase,
            f"{phase.tokens:,.3g}",
            size(round(phase.streamed_bytes)) if phase.streamed_bytes else MISSING,
            f"{operations(phase.operations)}op",
            microseconds(phase.floor_us),
            microseconds(phase.kernels_us),
            microseconds(phase.step_us),
            share(phase.of_floor),
            share(phase.placed_us / phase.kernels_us if phase.kernels_us else None),
        )
        for phase in phases
    )
    columns = (
        Column("Steps"),
        Column("Tokens", "number"),
        Column("Streams", "number"),
        Column("Operations", "number"),
        Column("Floor", "number"),
        Column("Kernels", "number"),
        Column("Median step", "number"),
        Column("Floor of it", "number"),
        Column("Proven for", "number", optional=True),
    )
    intro: tuple[str, ...] = ()
    if found and rows:
        intro = (
            "The floor is what a step needs at least: for each kernel its bytes at the bandwidth "
            "that a reader reaches, or its arithmetic at the peak, whichever takes longer. Proven "
            "for: share of the kernel time of which is proven which weights a kernel reads.",
            *_ceiling_lines(found.ceilings),
            *(clean(note) for note in found.notes),
            *(clean(note) for phase in phases for note in phase.notes),
        )
    return Section("floors", _TITLE, columns, rows, intro)


def kernels(report: Report) -> Section:
    """Lists the kernels of decode steps with the most time above their floor."""
    found = report.roofline
    phase = _phase(found)
    rows = tuple(_row(row) for row in _shown(phase)) if phase else ()
    columns = (
        Column("Above floor", "number"),
        Column("A call", "number", optional=True),
        Column("Floor", "number"),
        Column("Needs", "number", optional=True),
        Column("Reaches", "number"),
        Column("Of reader", "number", optional=True),
        Column("Of data sheet", "number", optional=True),
        Column("Limited by"),
        Column("Really read", "number"),
        Column("Component"),
        Column("What", optional=True),
        Column("Kernel", "name"),
    )
    intro: tuple[str, ...] = ()
    if phase:
        rest = phase.kernels_us - phase.placed_us
        intro = (
            "Kernels of a decode step by the time that all their calls take above their floor. "
            f"Kernels whose need is not proven take {microseconds(rest)} a step.",
        )
    return Section("roofline", "How far kernels are from their floor", columns, rows, intro)


def streamed(report: Report) -> Section:
    """Lists the weights that one decode step reads, by component and storage type."""
    found = report.roofline
    phase = _phase(found)
    reader = found.ceilings.bandwidth if found else None
    rows = tuple(
        (
            size(round(row.bytes)),
            share(row.share),
            microseconds(row.bytes / reader.value * 1e6) if reader else MISSING,
            clean(row.component),
            _stored(row),
            clean(row.part) or MISSING,
        )
        for row in (found.weights if found else ())
        if row.share >= _LEAST_LEFT
    )
    columns = (
        Column("A step", "number"),
        Column("Share", "number"),
        Column("At the ceiling", "number"),
        Column("Component"),
        Column("Stored as"),
        Column("Which weights"),
    )
    intro: tuple[str, ...] = ()
    if phase and rows:
        intro = (
            f"Of {size(round(phase.streamed_bytes))} that a decode step has to read, KV cache "
            "and scales included.",
        )
    return Section("streamed_weights", "What a decode step streams", columns, rows, intro)


def _phase(found: Roofline | None) -> RooflinePhase | None:
    return found.decode if found else None


def _shown(phase: RooflinePhase) -> list[RooflineRow]:
    least = _LEAST_LEFT * phase.kernels_us
    return [row for row in phase.rows if (row.left_us or 0.0) > least][:_MOST_ROWS]


def _row(row: RooflineRow) -> tuple[str, ...]:
    least = "at least " if row.expected else ""
    needed = MISSING if row.needed_bytes is None else least + size(round(row.needed_bytes))
    return (
        microseconds(row.left_us),
        microseconds(row.us),
        microseconds(row.floor_us),
        needed,
        bandwidth(row.bandwidth),
        share(row.of_reached),
        share(row.of_data_sheet),
        row.limiter or MISSING,
        _really(row),
        clean(row.component),
        clean(row.what) or MISSING,
        clean(row.name),
    )


def _stored(row: StreamedWeights) -> str:
    packed = row.quantized and row.dtype in ("int32", "int64", "uint8")
    return "packed, format not known" if packed else clean(row.dtype) or MISSING


def _really(row: RooflineRow) -> str:
    if row.read_bytes is None:
        return MISSING
    times = "" if row.amplification is None else f" ({row.amplification:.2f} x)"
    return size(round(row.read_bytes)) + times


def _ceiling_lines(ceilings: Ceilings) -> list[str]:
    lines = []
    reached, sheet = ceilings.reached, ceilings.data_sheet
    if reached:
        lines.append(f"Reader: {bandwidth(reached.value)}, {clean(reached.source)}.")
    if sheet:
        lines.append(f"Data sheet: {bandwidth(sheet.value)}, {clean(sheet.source)}.")
    if ceilings.clocks:
        lines.append(f"When it was measured: {clean(ceilings.clocks)}.")
    return lines

"""Sections about floors: what steps need at least, how far kernels are from it, and bytes."""

from __future__ import annotations

from collections.abc import Sequence

from spark_prof.analyzers.classify.classifier import short_name
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
    counted,
    microseconds,
    operations,
    share,
    shorten,
    size,
)
from spark_prof.dashboards.section import Column, Section

_TITLE = "The least that steps could take"
_MOST_ROWS = 24
_LONGEST_ROLE = 36
_ROUNDING = 1e-6
_LEAST_SHARE = 0.005
"""Of a step's kernel time, or of its bytes: what has less is not listed."""


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
    """Lists what a decode step's kernel time goes to, by role and kernel; the rows add up to it."""
    found = report.roofline
    phase = _phase(found)
    least = _LEAST_SHARE * phase.kernels_us if phase else 0.0
    rows = sorted(phase.rows if phase else (), key=lambda row: -row.us * row.calls)
    shown = [row for row in rows[:_MOST_ROWS] if row.us * row.calls >= least]
    columns = (
        Column("Role"),
        Column("A step", "number"),
        Column("Lower bound", "number"),
        Column("Of bound", "number"),
        Column("Evidence"),
        Column("Kernel", "name"),
        Column("Calls", "number", optional=True),
        Column("Limited by", optional=True),
        Column("Reaches", "number", optional=True),
        Column("Of reader", "number", optional=True),
        Column("Of data sheet", "number", optional=True),
        Column("Really read", "number", optional=True),
        Column("Needs", "number", optional=True),
        Column("What", optional=True),
        Column("Component", optional=True),
    )
    intro: tuple[str, ...] = ()
    cells = [_row(row) for row in shown]
    if phase and cells:
        rest, left = phase.kernels_us - sum(row.us * row.calls for row in shown), rows[len(shown) :]
        if left or rest > _ROUNDING * phase.kernels_us:
            cells.append(_rest(left, rest, len(columns)))
        unknown = phase.kernels_us - phase.placed_us
        intro = (
            f"A mean decode step has {microseconds(phase.kernels_us)} of kernels, to which the "
            f"rows add up. Kernels whose need is not proven take {microseconds(unknown)} of it. "
            "Lower bound: what all calls of a row need at least; of bound: its share of their "
            "time.",
            "Evidence of the role: weight, kv and range prove it (what the kernel reads, or the "
            "module that was open), flow derives it, order and name are guesses. In brackets: the "
            "component alone, where no role is known.",
        )
    return Section("roofline", "Kernels of a decode step by role", columns, tuple(cells), intro)


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
        if row.share >= _LEAST_SHARE
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


def _row(row: RooflineRow) -> tuple[str, ...]:
    least = "at least " if row.expected else ""
    needed = MISSING if row.needed_bytes is None else least + size(round(row.needed_bytes))
    bound = None if row.floor_us is None else row.floor_us * row.calls
    return (
        shorten(clean(row.role), _LONGEST_ROLE) or f"({clean(row.component)})",
        microseconds(row.us * row.calls),
        microseconds(bound),
        share(None if bound is None or not row.us else bound / (row.us * row.calls)),
        clean(row.owner_basis),
        clean(short_name(row.name)),
        f"{row.calls:,.3g}",
        row.limiter or MISSING,
        bandwidth(row.bandwidth),
        share(row.of_reached),
        share(row.of_data_sheet),
        _really(row),
        needed,
        clean(row.what) or MISSING,
        clean(row.component),
    )


def _rest(rows: Sequence[RooflineRow], us: float, columns: int) -> tuple[str, ...]:
    """The rows that are not listed, as one."""
    bounds = [row.floor_us * row.calls for row in rows if row.floor_us is not None]
    bound = microseconds(sum(bounds)) if bounds else MISSING
    more = counted(len(rows), "more row") if rows else MISSING
    named = ("rest", microseconds(us), bound, MISSING, MISSING, more)
    return (*named, *[MISSING] * (columns - len(named)))


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

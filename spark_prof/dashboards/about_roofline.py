"""Sections about floors: how far kernels are from them, what steps stream, what was measured."""

from __future__ import annotations

from spark_prof.analyzers.model import Report
from spark_prof.analyzers.roofline.model import (
    Ceilings,
    Roofline,
    RooflinePhase,
    RooflineRow,
    StreamedWeights,
)
from spark_prof.dashboards.formats import MISSING, clean, count, microseconds, share, size
from spark_prof.dashboards.section import Column, Section
from spark_prof.traces.measured import DeviceState, Measured

__all__ = ["kernels", "measured", "streamed"]

_TITLE = "How far kernels are from their floor"
_MOST_ROWS = 12
_LEAST_LEFT = 0.005
"""Share of the step's kernel time above its floor below which a kernel is not listed."""


def kernels(report: Report) -> Section:
    """Lists the kernels of decode steps with the most time above their floor."""
    found = report.roofline
    phase = _phase(found)
    rows = tuple(_row(row) for row in _shown(phase)) if phase else ()
    if found and phase and not phase.needed_bytes:
        # A section says something only in rows; without figures the reason is what there is.
        reasons = tuple((clean(note),) for note in found.notes)
        return Section("roofline", _TITLE, (Column("", "prose"),), reasons)
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
    intro = _intro(found, phase) if found and phase else ()
    return Section("roofline", _TITLE, columns, rows, intro)


def streamed(report: Report) -> Section:
    """Lists the weights that one decode step reads, by component and storage type."""
    found = report.roofline
    phase = _phase(found)
    bandwidth = found.ceilings.bandwidth if found else None
    rows = tuple(
        (
            size(round(row.bytes)),
            share(row.share),
            microseconds(row.bytes / bandwidth.value * 1e6) if bandwidth else MISSING,
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


def measured(found: Measured) -> Section:
    """Lists what `spark-prof doctor --measure` measured."""
    rows = tuple(
        (
            _QUANTITIES.get(entry.quantity, f"{clean(entry.quantity)} matrix product"),
            _amount(entry.value, entry.unit),
            f"{_amount(entry.lowest, entry.unit)} to {_amount(entry.highest, entry.unit)}",
            count(entry.repeats),
            clean(entry.how),
        )
        for entry in found.measurements
    )
    columns = (
        Column("Ceiling"),
        Column("Median", "number"),
        Column("Range", "number"),
        Column("Repeats", "number", optional=True),
        Column("How", "prose"),
    )
    about = f"{clean(found.device)}, measured {clean(found.taken)} with torch {clean(found.torch)}."
    states = [
        f"{when}: {said}."
        for when, state in (("Before", found.before), ("After", found.after))
        if (said := _state(state))
    ]
    notes = tuple(clean(note) for note in found.notes)
    return Section("measured", "Measured ceilings", columns, rows, (about, *states, *notes))


_QUANTITIES = {
    "read": "memory, read",
    "write": "memory, written",
    "copy": "memory, copied",
    "launch_eager": "empty kernel, launched alone",
    "launch_graph": "empty kernel in a CUDA graph",
}


def _phase(found: Roofline | None) -> RooflinePhase | None:
    return found.decode if found else None


def _shown(phase: RooflinePhase) -> list[RooflineRow]:
    least = _LEAST_LEFT * phase.kernels_us
    return [row for row in phase.rows if (row.left_us or 0.0) > least][:_MOST_ROWS]


def _row(row: RooflineRow) -> tuple[str, ...]:
    about = "about " if row.expected else ""
    needed = MISSING if row.needed_bytes is None else about + size(round(row.needed_bytes))
    return (
        microseconds(row.left_us),
        microseconds(row.us),
        microseconds(row.floor_us),
        needed,
        _rate(row.bandwidth),
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
    return f"packed in {row.dtype}" if packed else clean(row.dtype) or MISSING


def _really(row: RooflineRow) -> str:
    if row.read_bytes is None:
        return MISSING
    times = "" if row.amplification is None else f" ({row.amplification:.2f} x)"
    return size(round(row.read_bytes)) + times


def _intro(found: Roofline, phase: RooflinePhase) -> tuple[str, ...]:
    lines = []
    if phase.floor_us is not None:
        lines.append(
            f"The floors of a decode step add up to {microseconds(phase.floor_us)}"
            + (
                f"; the median step takes {microseconds(phase.step_us)}: "
                f"{share(phase.of_floor)} of it is floor."
                if phase.step_us
                else "."
            )
        )
        rest = phase.kernels_us - phase.placed_us
        lines.append(
            "A floor is what a call needs at least: its bytes at the ceiling, or its arithmetic. "
            f"Above it: all calls of a step. Kernels without a known need take "
            f"{microseconds(rest)} a step."
        )
    lines += _ceiling_lines(found.ceilings)
    return (*lines, *(clean(note) for note in (*found.notes, *phase.notes)))


def _ceiling_lines(ceilings: Ceilings) -> list[str]:
    lines = []
    reached, sheet = ceilings.reached, ceilings.data_sheet
    if reached:
        lines.append(f"Reader: {_rate(reached.value)}, {clean(reached.source)}.")
    if sheet:
        lines.append(f"Data sheet: {_rate(sheet.value)}, {clean(sheet.source)}.")
    if ceilings.clocks:
        lines.append(f"When it was measured: {clean(ceilings.clocks)}.")
    return lines


def _state(state: DeviceState) -> str:
    parts = [
        f"SM clock {state.sm_mhz} MHz" if state.sm_mhz else "",
        f"memory clock {state.memory_mhz} MHz" if state.memory_mhz else "",
        f"{state.temperature_c} degrees Celsius" if state.temperature_c else "",
        f"{state.power_w:.0f} W" if state.power_w else "",
        f"clocks held down by {clean(' and '.join(state.throttled))}" if state.throttled else "",
    ]
    return ", ".join(filter(None, parts))


def _amount(value: float, unit: str) -> str:
    if unit == "s":
        return microseconds(value * 1e6)
    if unit == "B/s":
        return _rate(value)
    scale, letter = (1e12, "T") if value >= 1e11 else (1e9, "G")
    return f"{value / scale:,.2f} {letter}{clean(unit)}"


def _rate(bytes_a_second: float | None) -> str:
    if bytes_a_second is None:
        return MISSING
    return f"{bytes_a_second / 1e9:,.{0 if bytes_a_second >= 1e11 else 1}f} GB/s"

"""The section about what `spark-prof doctor --measure` measured."""

from __future__ import annotations

from spark_prof.dashboards.formats import bandwidth, clean, count, microseconds, operations
from spark_prof.dashboards.section import Column, Section
from spark_prof.traces.measured import Measured

_QUANTITIES = {
    "read": "memory, read",
    "write": "memory, written",
    "copy": "memory, copied",
    "launch_eager": "empty kernel, launched alone",
    "launch_graph": "empty kernel in a CUDA graph",
}


def measured(found: Measured) -> Section:
    """Lists the measured ceilings, and how the device stood before and after."""
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
        f"{when}: {clean(state.words)}."
        for when, state in (("Before", found.before), ("After", found.after))
        if state.words
    ]
    notes = tuple(clean(note) for note in found.notes)
    return Section("measured", "Measured ceilings", columns, rows, (about, *states, *notes))


def _amount(value: float, unit: str) -> str:
    if unit == "s":
        return microseconds(value * 1e6)
    return bandwidth(value) if unit == "B/s" else f"{operations(value)}{clean(unit)}"

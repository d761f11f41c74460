"""Sections about the memory system: what the GPU's hardware counters say about kernels."""

from __future__ import annotations

from spark_prof.analyzers.counters.counter_rows import CounterBatch, CounterRow, Counters
from spark_prof.analyzers.model import Report
from spark_prof.dashboards.formats import (
    MISSING,
    clean,
    count,
    counted,
    microseconds,
    share,
    size,
)
from spark_prof.dashboards.section import Column, Section

_MOST_ROWS = 15


def kernels(report: Report) -> Section:
    """Lists what the most expensive kernels move, in the batch size that was sampled most."""
    found = report.counters
    batch = found.batches[0] if found and found.batches else None
    every = batch.rows if batch else found.long if found else ()
    rows = tuple(
        (
            microseconds(row.us),
            f"{row.calls:,.0f}",
            _bytes(row.read_bytes, row.read_error),
            _bytes(row.write_bytes, row.write_error),
            _rate(row.bandwidth),
            share(row.tensor_active),
            share(row.warps_active),
            share(row.sm_active),
            clean(row.component),
            clean(row.name),
        )
        for row in sorted(every, key=_time)[:_MOST_ROWS]
    )
    columns = (
        Column("A call", "number"),
        Column("Calls", "number", optional=True),
        Column("Read", "number"),
        Column("Written", "number"),
        Column("Moved", "number"),
        Column("Tensor pipe", "number"),
        Column("Occupancy", "number", optional=True),
        Column("SMs", "number", optional=True),
        Column("Component"),
        Column("Kernel", "name"),
    )
    intro = _intro(found, batch) if found else ()
    if found and not rows:
        # A section says something only in rows; without figures the reason is what there is.
        return Section(
            "counters",
            "What kernels move",
            (Column("", "prose"),),
            tuple((n,) for n in found.notes),
        )
    return Section("counters", "What kernels move", columns, rows, intro)


def weights(report: Report) -> Section:
    """Holds the bytes that kernels read against the weights that their component has."""
    batches = report.counters.batches if report.counters else ()
    rows = tuple(
        (
            clean(row.component),
            count(batch.tokens),
            _bytes(row.read_bytes, row.read_error),
            size(round(row.weight_bytes)),
            f"{row.ratio:.2f} x",
            clean(row.part) or MISSING,
        )
        for batch in batches
        for row in batch.weights
    )
    columns = (
        Column("Component"),
        Column("Tokens", "number"),
        Column("Read in a step", "number"),
        Column("Weights", "number"),
        Column("Read over weights", "number"),
        Column("Which weights"),
    )
    intro = ("Bytes that a component's kernels read from DRAM in one decode step.",)
    return Section("counter_weights", "Memory traffic and weights", columns, rows, intro)


def _intro(found: Counters, batch: CounterBatch | None) -> tuple[str, ...]:
    lines = []
    if batch is not None:
        lines.append(
            f"Sampled every {found.interval_us:g} us; {counted(batch.steps, 'decode step')} of "
            f"{counted(batch.tokens, 'token')} folded onto one another. After the sign: the "
            "standard error. DRAM traffic of one call; calls of one step."
        )
        if not batch.by_node:
            lines.append(
                "So few steps do not tell a kernel's layers apart: they were taken to be alike."
            )
        if abs(batch.lag_us) > found.interval_us:
            lines.append(
                f"The samples came {batch.lag_us:.1f} us after the kernels; that was taken out."
            )
    else:
        lines.append(
            f"Sampled every {found.interval_us:g} us. No batch size had enough steps to fold: only "
            "kernels that last at least ten samples are listed."
        )
    return (*lines, *(clean(note) for note in found.notes))


def _time(row: CounterRow) -> float:
    return -row.us * row.calls


def _bytes(amount: float | None, error: float | None) -> str:
    if amount is None:
        return MISSING
    if error is None:
        return size(round(amount))
    # Both in the unit of the amount: "12.00 MiB ±0.1 %" needs no second unit.
    return f"{size(round(amount))} ±{100 * error / amount:.1f} %" if amount >= 1 else "0 B"


def _rate(bytes_a_second: float | None) -> str:
    return MISSING if bytes_a_second is None else f"{bytes_a_second / 1e9:,.0f} GB/s"

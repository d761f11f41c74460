"""How kernels use the GPU: launch shapes and tiles, and what hardware counters say of memory."""

from __future__ import annotations

from spark_prof.analyzers.counters.counter_batches import CounterBatch, Counters
from spark_prof.analyzers.model import Report
from spark_prof.analyzers.shapes.shape_rows import ShapeRow
from spark_prof.dashboards import cells
from spark_prof.dashboards.section import Section, listed, table
from spark_prof.dashboards.units import MISSING, count, counted, decimal_size, figure

_MOST_ROWS = 15
_LEAST_SHARE = 0.01


def shapes(report: Report) -> Section:
    """Lists the launch shapes that take at least a hundredth of the time of decode steps."""
    every = report.shapes.rows if report.shapes else ()
    rows = [row for row in every if row.share >= _LEAST_SHARE][:_MOST_ROWS]
    called = cells.called(row.name for row in rows)
    columns = (
        cells.Share("Share", "share"),
        cells.Text("Component", "component"),
        cells.Text("Grid", lambda row: row.grid.replace(",", "x")),
        cells.Ratio("Waves", "waves", optional=True),
        cells.Share("Busy", "busy"),
        cells.Share("Occupancy", "occupancy.share"),
        cells.Text("Limited by", limiters, optional=True, missing=MISSING),
        cells.Share("Achieved", "achieved", optional=True),
        cells.Text("Tile", _tile, optional=True, missing=MISSING),
        cells.Formatted("Token rows", _rows_used),
        cells.Name("Kernel", lambda row: called[row.name]),
    )
    return table("shapes", "How kernels fill the GPU", rows, columns, _about_shapes(report, rows))


def _about_shapes(report: Report, rows: list[ShapeRow]) -> tuple[str, ...]:
    shapes = report.shapes
    if not shapes:
        return ()
    lines = []
    of_decode = " of decode steps" if report.steps.decode else ""
    if shapes.multiprocessors:
        lines.append(
            f"Launches{of_decode} on {count(shapes.multiprocessors)} multiprocessors. Busy is the "
            "share of them that has a block, over all waves; occupancy the warps that one could "
            "hold."
        )
    if any(row.tile_waste for row in rows):
        lines.append(
            "Token rows of a tile that hold no token cost arithmetic, not memory traffic: a kernel "
            "that waits for memory does not get slower by them."
        )
    return (*lines, *shapes.notes)


def limiters(row: ShapeRow | None) -> str:
    """What limits the occupancy of a launch."""
    return " and ".join(row.occupancy.limiters) if row and row.occupancy else ""


def _tile(row: ShapeRow) -> str | None:
    if row.tile is None:
        return None
    sides = (row.tile.first, row.tile.second, row.tile.depth)
    return "x".join(str(side) for side in sides if side)


def _rows_used(row: ShapeRow) -> str | None:
    if row.rows_used is None or row.tile is None or row.tile.token_rows is None:
        return None
    about = "about " if row.expected else ""
    return f"{about}{row.rows_used:.3g} of {row.tile.token_rows}"


def kernels(report: Report) -> Section:
    """Lists what the most expensive kernels move, in the batch size that was sampled most."""
    counters = report.counters
    batch = counters.batches[0] if counters and counters.batches else None
    every = batch.rows if batch else counters.long if counters else ()
    rows = sorted(every, key=lambda row: -row.us * row.calls)[:_MOST_ROWS]
    title = "What kernels move"
    if counters and not rows:
        # A section says something only in rows; without figures the reason is what there is.
        return listed("counters", title, counters.notes)
    columns = (
        cells.Time("A call", "us"),
        cells.Formatted("Calls", lambda row: figure(row.calls, ",.0f"), optional=True),
        cells.Formatted("Read", lambda row: _bytes(row.read_bytes, row.read_error)),
        cells.Formatted("Written", lambda row: _bytes(row.write_bytes, row.write_error)),
        # In whole GB/s: samples are no more exact than that.
        cells.Formatted("Moved", lambda row: row.bandwidth and f"{row.bandwidth / 1e9:,.0f} GB/s"),
        cells.Share("Tensor pipe", "tensor_active"),
        cells.Share("Occupancy", "warps_active", optional=True),
        cells.Share("SMs", "sm_active", optional=True),
        cells.Text("Component", "component"),
        cells.Name("Kernel", "name"),
    )
    return table(
        "counters", title, rows, columns, _about_samples(counters, batch) if counters else ()
    )


def weights(report: Report) -> Section:
    """Holds the bytes that kernels read against the weights that their component has."""
    batches = report.counters.batches if report.counters else ()
    pairs = [(row, batch.tokens) for batch in batches for row in batch.weights]
    columns = (
        cells.Text("Component", lambda pair: pair[0].component),
        cells.Count("Tokens", lambda pair: pair[1]),
        cells.Formatted(
            "Read in a step", lambda pair: _bytes(pair[0].read_bytes, pair[0].read_error)
        ),
        cells.DecimalBytes("Weights", lambda pair: pair[0].weight_bytes),
        cells.Times("Read over weights", lambda pair: pair[0].ratio),
        cells.Text("Which weights", lambda pair: pair[0].part, missing=MISSING),
    )
    intro = ("Bytes that a component's kernels read from DRAM in one decode step.",)
    return table("counter_weights", "Memory traffic and weights", pairs, columns, intro)


def _about_samples(counters: Counters, batch: CounterBatch | None) -> tuple[str, ...]:
    if batch is None:
        return (
            f"Sampled every {counters.interval_us:g} us. No batch size had enough steps to fold: "
            "only kernels that last at least ten samples are listed.",
            *counters.notes,
        )
    lines = [
        f"Sampled every {counters.interval_us:g} us; {counted(batch.steps, 'decode step')} of "
        f"{counted(batch.tokens, 'token')} folded onto one another. After the sign: the "
        "standard error. DRAM traffic of one call; calls of one step."
    ]
    if not batch.by_node:
        lines.append(
            "So few steps do not tell a kernel's layers apart: they were taken to be alike."
        )
    if abs(batch.lag_us) > counters.interval_us:
        lines.append(
            f"The samples came {batch.lag_us:.1f} us after the kernels; that was taken out."
        )
    return (*lines, *counters.notes)


def _bytes(amount: float | None, error: float | None) -> str | None:
    if amount is None:
        return None
    if error is None:
        return decimal_size(amount)
    # Both in the unit of the amount: "12.0 MB ±0.1 %" needs no second unit.
    return f"{decimal_size(amount)} ±{100 * error / amount:.1f} %" if amount >= 1 else "0 B"

"""What `spark-prof why` says: one answer, the sides, their components, and other formats."""

from __future__ import annotations

from spark_prof.analyzers.why import Part, Side, Why
from spark_prof.dashboards import cells
from spark_prof.dashboards.render import Layout, draw
from spark_prof.dashboards.section import Document, Section, commands, document, listed, table
from spark_prof.dashboards.short_report import elsewhere
from spark_prof.dashboards.units import bandwidth

_LEAST = 0.01  # of a side's bytes and of its time: components with less are left out


def render_why(found: Why, layout: Layout) -> str:
    """Draws the answer in a format."""
    return draw(lambda: _document(found), lambda: found, layout)


def _document(found: Why) -> Document:
    names, command = ", ".join(side.name for side in found.sides), found.next.command
    return document(
        f"spark-prof why: {names}",
        (),
        (
            listed("answer", "", found.answer),
            _sides(found),
            *(_parts(side) for side in found.sides),
            _what_ifs(found),
            commands("next", found.next.text, [command], [elsewhere(command)]),
        ),
    )


def _sides(found: Why) -> Section:
    columns = (
        cells.Name("", "name"),
        cells.DecimalBytes("A token reads", "bytes"),
        cells.Time("Lower bound", "bound_us"),
        cells.Time("Kernels", lambda side: side.kernels_us or None),
        cells.Time("Waits", lambda side: side.waits_us or None),
        cells.Time("Measured", "us"),
        cells.Share("Of bound", lambda side: side.bound_us / side.us if side.us else None),
        cells.Rate("Tokens/s", lambda side: 1e6 / (side.us or side.bound_us)),
    )
    intro = (
        f"Weights of one sequence on {found.gpu} at {bandwidth(found.bandwidth)}: {found.source}.",
    )
    sides = [side for side in found.sides if side.bound_us or side.us]
    return table("sides", "What a token reads and takes", sides, columns, intro)


def _parts(side: Side) -> Section:
    def matters(part: Part) -> bool:
        us = part.us or 0.0
        return part.bytes >= _LEAST * side.bytes > 0 or us >= _LEAST * (side.us or us + 1)

    columns = (
        cells.Text("Component", lambda part: part.component.replace("_", " ")),
        cells.Text("Stored as", "format"),
        cells.DecimalBytes("Reads", lambda part: part.bytes or None),
        cells.Time("Lower bound", lambda part: part.bound_us or None),
        cells.Time("Measured", "us"),
        cells.Share("Of bound", lambda part: part.of_bound or None),
        cells.Text("Computes in" if side.measured else "Can compute in", "computes_in"),
        cells.Name("Kernel", "kernel"),
    )
    kind = "recorded" if side.measured else "checkpoint: what is expected, not seen"
    return table(
        f"parts-{side.name}", f"{side.name} ({kind})", filter(matters, side.parts), columns
    )


def _what_ifs(found: Why) -> Section:
    columns = (
        cells.Text("Weights", "title"),
        cells.DecimalBytes("A token reads", "bytes"),
        cells.Time("Lower bound", "bound_us"),
        cells.Rate("Tokens/s at most", lambda row: 1e6 / row.bound_us),
    )
    rows = [row for row in found.what_ifs if row.bound_us]
    intro = ("Routers and norms stay as they are. What a format does to the answers is not told.",)
    return table("what-ifs", "The same model in other formats", rows, columns, intro)

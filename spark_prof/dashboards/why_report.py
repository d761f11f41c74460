"""What `spark-prof why` says: one answer, the sides, their components, and other formats."""

from __future__ import annotations

from spark_prof.analyzers.why import Why
from spark_prof.analyzers.why_sides import ComponentCost, WhySide
from spark_prof.dashboards import cells
from spark_prof.dashboards.gap_section import gap_sentences, gap_table
from spark_prof.dashboards.render import Layout, draw
from spark_prof.dashboards.section import Document, Section, commands, document, listed, table
from spark_prof.dashboards.short_report import elsewhere
from spark_prof.dashboards.units import bandwidth

_LEAST = 0.01  # of a side's bytes and of its time: components with less are left out


def render_why(why: Why, layout: Layout) -> str:
    """Draws the answer in a format."""
    return draw(lambda: document_of_why(why), lambda: why, layout)


def document_of_why(why: Why) -> Document:
    """The document that text, Markdown, HTML and a notebook draw."""
    sides = {side.name: side for side in why.sides}
    names, command = ", ".join(side.name for side in why.sides), why.next.command
    return document(
        f"spark-prof why: {names}",
        (),
        (
            listed("answer", "", (*gap_sentences(why), *why.answer)),
            _sides(why),
            *(gap_table(gap, sides, number) for number, gap in enumerate(why.gaps, 1)),
            *(_parts(side) for side in why.sides),
            _what_ifs(why),
            commands(
                "next",
                why.next.text,
                [command],
                [elsewhere(command)],
                [why.next.recorded_as],
            ),
        ),
    )


def _sides(why: Why) -> Section:
    several = any((side.batch or 1) > 1 for side in why.sides)
    columns = (
        cells.Name("", "name"),
        # A recording may not tell which weights a step reads.
        cells.DecimalBytes(
            "A step reads" if several else "A token reads", lambda side: side.bytes or None
        ),
        cells.Time("Lower bound", lambda side: side.bound_us or None),
        cells.Time("Kernels", lambda side: side.kernels_us or None),
        cells.Time("Waits", lambda side: side.waits_us or None),
        cells.Time("Measured", "us"),
        cells.Time("Nodes", lambda side: side.nodes_us or None, optional=True),
        cells.Share(
            "Of bound",
            lambda side: (
                (side.bound_us + side.nodes_us) / side.us
                if side.bytes and side.us and not side.ran_elsewhere
                else None
            ),
        ),
        cells.Share("Nodes of the distance", "nodes_of_distance", optional=True),
        cells.Rate("Tokens/s", lambda side: _rate(side, 1)),
        cells.Rate("Of all", lambda side: _rate(side, side.batch) if several else None),
        cells.DecimalBytes("In memory", lambda side: side.memory.bytes if side.memory else None),
    )
    ranks = max(side.ranks for side in why.sides)
    intro = [
        f"{_use(why)} on {f'each of {ranks} ' if ranks > 1 else ''}{why.gpu} at "
        f"{bandwidth(why.bandwidth)}: {why.source}."
    ]
    if ranks > 1:
        intro.append("What the GPUs tell each other is not in the bound.")
    if any(side.nodes_us for side in why.sides):
        intro.append(
            "Nodes: what those of the recorded CUDA graph cost that do nothing, beside the lower "
            "bound; of bound: the share of both."
        )
    if elsewhere := [side.name for side in why.sides if side.ran_elsewhere]:
        names = " and ".join(elsewhere)
        intro.append(f"{names} ran on another GPU, whose times are no share of this bound.")
    if why.experts_hit:
        intro.append("Every token is taken to hit any experts alike; real ones hit fewer.")
    sides = [side for side in why.sides if side.bound_us or side.us]
    return table("sides", "What a token reads and takes", sides, columns, intro)


def _use(why: Why) -> str:
    batches = {side.batch or 1 for side in why.sides}
    cached = any("KV cache" in part.format for side in why.sides for part in side.parts)
    subject = "Weights and KV cache" if cached else "Weights"
    if batches == {1}:
        return f"{subject} of one sequence"
    return f"{subject} of {' and '.join(map(str, sorted(batches)))} sequences at a time"


def _rate(side: WhySide, sequences: int | None) -> float | None:
    """Tokens per second of so many sequences; None where a checkpoint does not fit."""
    us = side.us or side.bound_us
    return 1e6 * (sequences or 1) / us if us and side.fits else None


def _parts(side: WhySide) -> Section:
    def matters(part: ComponentCost) -> bool:
        us = part.us or 0.0
        return part.bytes >= _LEAST * side.bytes > 0 or us >= _LEAST * (side.us or us + 1)

    bounds = {part.limit for part in side.parts}
    columns = (
        cells.Text("Component", lambda part: part.component.replace("_", " ")),
        cells.Text("Stored as", "format"),
        cells.DecimalBytes("Reads", lambda part: part.bytes or None),
        cells.Time("Lower bound", lambda part: part.bound_us or None),
        cells.Text("Bound by", lambda part: part.limit if bounds > {"memory"} else ""),
        cells.Time("Nodes", lambda part: part.nodes_us or None, optional=True),
        cells.Time("Measured", "us"),
        cells.Share("Of bound", lambda part: None if side.ran_elsewhere else part.of_bound or None),
        cells.Text("Computes in" if side.measured else "Can compute in", "computes_in"),
        cells.Name("Kernel", "kernel"),
    )
    kind = "recorded" if side.measured else "checkpoint: what is expected, not seen"
    return table(
        f"parts-{side.name}", f"{side.name} ({kind})", filter(matters, side.parts), columns
    )


def _what_ifs(why: Why) -> Section:
    columns = (
        cells.Text("Weights", "title"),
        cells.DecimalBytes("A token reads", "bytes"),
        cells.Time("Lower bound", "bound_us"),
        cells.Rate("Tokens/s at most", lambda row: 1e6 / row.bound_us if row.fits else None),
    )
    rows = [row for row in why.what_ifs if row.bound_us]
    intro = ("Routers and norms stay as they are. What a format does to the answers is not known.",)
    return table("what-ifs", "The same model in other formats", rows, columns, intro)

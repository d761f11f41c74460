"""Floors: what steps need at least, how far kernels are from it, and the bytes that they move."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from spark_prof.analyzers.classify.classifier import short_name
from spark_prof.analyzers.model import Report
from spark_prof.analyzers.roofline.roofline_rows import (
    Ceilings,
    Roofline,
    RooflineRow,
    StreamedWeights,
)
from spark_prof.dashboards import cells
from spark_prof.dashboards.charts import COLORS, NEUTRAL, TEXT, Plot, bars, label, new_figure
from spark_prof.dashboards.section import Section, listed, table
from spark_prof.dashboards.sections.layer_section import in_decoder_order
from spark_prof.dashboards.units import (
    MISSING,
    bandwidth,
    counted,
    decimal_size,
    figure,
    microseconds,
    operations,
    share,
    shorten,
)
from spark_prof.rules.gpus import SourcedFigure

_TITLE = "Lower bound of a step (roofline)"
_CUT = (
    "Cut off it: by how much kernels, or the whole step, were faster than their bytes at that "
    "bandwidth, as the cache had some of them; a lower bound ends at what was measured."
)
_MOST_ROWS = 24
_LONGEST_ROLE = 36
_ROUNDING = 1e-6
_LEAST_SHARE = 0.005  # of a step's kernel time, or of its bytes: what has less is not listed
_MOST_POINTS = 1500
_LARGEST = 44.0
_SMALLEST = 7.0
_POINTS_OF_A_LINE = 33
_Point = tuple[float, float]


def floors(report: Report) -> Section:
    """Holds what the steps of each phase need against what they take."""
    roofline = report.roofline
    phases = roofline.phases if roofline else ()
    if roofline and not any(phase.needed_bytes for phase in phases):
        # A section says something only in rows; without figures the reason is what there is.
        return listed("floors", _TITLE, roofline.notes)
    columns = (
        cells.Text("Steps", "phase"),
        cells.Formatted("Tokens", lambda phase: figure(phase.tokens, ",.3g")),
        cells.DecimalBytes("Streams", lambda phase: phase.streamed_bytes or None),
        cells.Formatted("Operations", lambda phase: operations(phase.operations, "op")),
        cells.Time("Bound", "floor_us"),
        cells.Time("Cut off it", lambda phase: phase.over_us or None, optional=True),
        cells.Time("Kernels", "kernels_us"),
        cells.Time("Median step", "step_us"),
        cells.Share("Of it", "of_floor"),
        cells.Share("With nodes", lambda p: p.of_bound if p.node_us else None, optional=True),
        cells.Share("Nodes of rest", "nodes_of_distance", optional=True),
        cells.Formatted(
            "Nodes", lambda p: figure(p.nodes, ",.0f") if p.node_us else None, optional=True
        ),
        cells.Time("Their price", lambda phase: phase.node_us or None, optional=True),
        cells.Share(
            "Proven for",
            lambda phase: phase.placed_us / phase.kernels_us if phase.kernels_us else None,
            optional=True,
        ),
    )
    intro: tuple[str, ...] = ()
    if roofline and phases:
        intro = (
            "The lower bound is what a step needs at least: for each kernel its bytes at the "
            "measured read bandwidth, or its arithmetic at the peak, whichever takes longer. "
            "Proven for: share of the kernel time of which is proven which weights a kernel reads.",
            *([_CUT] if any(phase.over_us for phase in phases) else ()),
            *_node_lines(roofline, any(phase.node_us for phase in phases)),
            *_ceiling_lines(roofline.ceilings),
            *roofline.notes,
            *(note for phase in phases for note in phase.notes),
        )
    return table("floors", _TITLE, phases, columns, intro)


def _node_lines(roofline: Roofline, priced: bool) -> Iterable[str]:
    if (price := roofline.ceilings.node) and priced:
        yield (
            "Nodes: kernels of CUDA graphs that wait for the one before them, each "
            f"{price.least_us:.3f} us at least ({price.source}) on top of the bound. What runs "
            "beside other work, the first kernel of a step and what the host launches has no such "
            "price. Of rest: their share of what the step takes beyond the bound."
        )


def _ceiling_lines(ceilings: Ceilings) -> Iterable[str]:
    for name, ceiling in (("Reader", ceilings.reached), ("Data sheet", ceilings.data_sheet)):
        if ceiling:
            yield f"{name}: {bandwidth(ceiling.value)}, {ceiling.source}."
    if ceilings.clocks:
        yield f"When it was measured: {ceilings.clocks}."


def kernels(report: Report) -> Section:
    """Lists what a decode step's kernel time goes to, by role and kernel; the rows add up to it."""
    phase = report.decode_roofline
    columns = (
        cells.Text("Role", lambda row: shorten(row.role, _LONGEST_ROLE) or f"({row.component})"),
        cells.Time("A step", "step_us"),
        cells.Time("Lower bound", "bound_us"),
        cells.Time("Nodes", lambda row: row.inside_us or None, optional=True),
        cells.Share("Of bound", "of_bound"),
        cells.Text("Evidence", "owner_basis"),
        cells.Name("Kernel", lambda row: short_name(row.name)),
        cells.Formatted("Calls", lambda row: figure(row.calls, ",.3g"), optional=True),
        cells.Text("Limited by", "limiter", optional=True, missing=MISSING),
        cells.Bandwidth("Reaches", "bandwidth", optional=True),
        cells.Share("Of reader", "of_reached", optional=True),
        cells.Share("Of data sheet", "of_data_sheet", optional=True),
        cells.Formatted("Really read", _really, optional=True),
        cells.Formatted("Needs", needed, optional=True),
        cells.Text("What", "what", optional=True, missing=MISSING),
        cells.Text("Component", "component", optional=True),
    )
    title = "Kernels of a decode step by role"
    rows = sorted(phase.rows if phase else (), key=lambda row: -row.step_us)
    least = _LEAST_SHARE * phase.kernels_us if phase else 0.0
    largest = [row for row in rows[:_MOST_ROWS] if row.step_us >= least]
    if phase is None or not largest:
        return table("roofline", title, (), columns)
    unknown = phase.kernels_us - phase.placed_us
    exchanges = any(row.owner_basis == "stream" for row in rows)
    by_stream = "stream proves what a collective serves (it ran right before), " * exchanges
    intro = (
        f"The typical decode step has {microseconds(phase.kernels_us)} of kernels, to which the "
        f"rows add up. Kernels whose need is not proven take {microseconds(unknown)} of it. "
        "Lower bound: what all calls of a row need at least; of bound: its share of their "
        "time" + (", nodes included." if any(row.inside_us for row in rows) else "."),
        "Evidence of the role: weight, kv and range prove it (what the kernel reads, or the "
        f"module that was open), {by_stream}flow derives it, order and name are guesses. In "
        "brackets: the component alone, where no role is known.",
    )
    rest, left = phase.kernels_us - sum(row.step_us for row in largest), rows[len(largest) :]
    if not left and rest <= _ROUNDING * phase.kernels_us:
        return table("roofline", title, largest, columns, intro)
    bounds = [bound for row in left if (bound := row.bound_us) is not None]
    rows_left = counted(len(left), "more row") if left else MISSING
    named = ("rest", microseconds(rest), microseconds(sum(bounds) if bounds else None))
    nodes = microseconds(sum(row.inside_us for row in left) or None)
    last = (*named, nodes, MISSING, MISSING, rows_left, *[MISSING] * (len(columns) - 7))
    return table("roofline", title, largest, columns, intro, (last,))


def streamed(report: Report) -> Section:
    """Lists the weights that one decode step reads, by component and storage type."""
    roofline = report.roofline
    phase = report.decode_roofline
    reader = roofline.ceilings.bandwidth if roofline else None
    rows = [row for row in report.streamed if row.share >= _LEAST_SHARE]
    columns = (
        cells.DecimalBytes("A step", "bytes"),
        cells.Share("Share", "share"),
        cells.Time(
            "At the ceiling", lambda row: row.bytes / reader.value * 1e6 if reader else None
        ),
        cells.Text("Component", "component"),
        cells.Text("Stored as", _stored, missing=MISSING),
        cells.Text("Which weights", "part", missing=MISSING),
    )
    intro: tuple[str, ...] = ()
    if phase and rows:
        intro = (
            f"Of {decimal_size(phase.streamed_bytes)} that a decode step has to read, KV cache "
            "and scales included.",
        )
    return table("streamed_weights", "What a decode step streams", rows, columns, intro)


def needed(row: RooflineRow) -> str | None:
    """How many bytes a call needs."""
    if row.needed_bytes is None:
        return None
    size = decimal_size(row.needed_bytes)
    return f"at least {size}" if row.expected else size


def _really(row: RooflineRow) -> str | None:
    if row.read_bytes is None:
        return None
    times = "" if row.amplification is None else f" ({row.amplification:.2f} x)"
    return decimal_size(row.read_bytes) + times


def _stored(row: StreamedWeights) -> str:
    packed = row.quantized and row.dtype in ("int32", "int64", "uint8")
    return "packed, format not known" if packed else row.dtype


def kernels_and_memory(report: Report) -> Plot:
    """Draws the kernels of a mean decode step beside the memory's speed."""
    phase = report.decode_roofline
    if report.roofline is None or phase is None:
        return bars("No kernels", [], [])
    drawn = bytes_and_time(phase.rows, report.roofline.ceilings, {})
    # Beside the figure the names would take half of a phone's width.
    drawn.update_layout(legend={"orientation": "h", "yanchor": "top", "y": -0.2})
    return drawn


class _CeilingLine(NamedTuple):
    """A ceiling: its points, what it is, and how it is drawn."""

    x: Sequence[float]
    y: Sequence[float]
    text: str
    dash: str


def with_need(rows: Sequence[RooflineRow]) -> tuple[RooflineRow, ...]:
    """The kernels of which a need in bytes is known, what takes the most time first."""
    rows_with_need = [row for row in rows if row.needed_bytes and row.us > 0]
    return tuple(sorted(rows_with_need, key=lambda row: -row.step_us))[:_MOST_POINTS]


def with_intensity(rows: Sequence[RooflineRow]) -> tuple[RooflineRow, ...]:
    """The kernels of which bytes and operations are known, what takes the most time first."""
    return tuple(row for row in with_need(rows) if row.operations > 0)


def bytes_and_time(
    rows: Sequence[RooflineRow], ceilings: Ceilings, places: Mapping[str, int]
) -> Plot:
    """Draws the bytes that a call needs against the time that it takes.

    A kernel on the line moves its bytes as fast as the memory can; above it, it is slower. Points
    have the places of the kernels' names as customdata.
    """
    drawn_rows = with_need(rows)
    ends = _around([row.needed_bytes for row in drawn_rows if row.needed_bytes])
    lines = [
        _CeilingLine(ends, [x / ceiling.value * 1e6 for x in ends], text, dash)
        for text, ceiling, dash in _bandwidths(ceilings)
    ]
    points = [(row.needed_bytes, row.us) for row in drawn_rows if row.needed_bytes]
    title = "Bytes that a call needs, and its time"
    return _figure(
        title, drawn_rows, points, points, lines, places, ("bytes of a call", "us of a call")
    )


def intensity(
    rows: Sequence[RooflineRow],
    ceilings: Ceilings,
    precisions: Mapping[tuple[str, str], str],
    places: Mapping[str, int],
) -> Plot:
    """Draws the operations of a byte against those of a second, under the ceilings of the GPU.

    The precisions of the kernels' arithmetic are by name and component; the points have the places
    of the kernels' names as customdata.
    """
    drawn_rows = with_intensity(rows)
    used = {precisions.get((row.name, row.component), "") for row in drawn_rows}
    peaks = [(name, value) for name, value in ceilings.peaks if name in used]
    points = [
        (row.operations / row.needed_bytes, row.operations / row.us / 1e6)
        for row in drawn_rows
        if row.needed_bytes
    ]
    reading = ceilings.bandwidth
    bends = [value / reading.value for _, value in peaks] if reading else []
    ends = sorted([*_around([*(x for x, _ in points), *bends]), *bends])
    top = max((value for _, value in peaks), default=math.inf)
    lines = []
    for text, ceiling, dash in _bandwidths(ceilings):
        x = [at for at in ends if at * ceiling.value <= top * 1.0001]
        lines.append(_CeilingLine(x, [at * ceiling.value / 1e12 for at in x], text, dash))
    for name, value in peaks:
        x = [at for at in ends if reading is None or at * reading.value >= value * 0.9999]
        text = f"{label(name)}, {operations(value)}op/s"
        lines.append(_CeilingLine(x, [value / 1e12 for _ in x], text, "dot"))
    title = "Operations of a byte, and operations of a second"
    inside = [*points, *((bend, 0.0) for bend in bends), *((0.0, v / 1e12) for _, v in peaks)]
    return _figure(
        title, drawn_rows, points, inside, lines, places, ("operations of a byte", "Top/s")
    )


def _bandwidths(ceilings: Ceilings) -> list[tuple[str, SourcedFigure, str]]:
    """What is written beside each, and how its line is drawn."""
    named = (("measured reader", ceilings.reached, "solid"),
             ("data sheet", ceilings.data_sheet, "dash"))  # fmt: skip
    return [
        (f"{name}, {bandwidth(ceiling.value)}", ceiling, dash)
        for name, ceiling, dash in named
        if ceiling
    ]


def _figure(
    title: str,
    rows: Sequence[RooflineRow],
    points: Sequence[_Point],
    inside: Sequence[_Point],
    lines: Sequence[_CeilingLine],
    places: Mapping[str, int],
    axes: tuple[str, str],
) -> Plot:
    """Draws kernels at their points under lines; the axes reach what is `inside`, but for 0."""
    figure = new_figure(
        title, 470, showlegend=True, legend={"itemsizing": "constant"}, hovermode="closest",
        clickmode="event+select",
    )  # fmt: skip
    for line in lines:
        figure.add_scatter(
            x=list(line.x), y=list(line.y), mode="lines", name=line.text,
            line={"color": TEXT, "dash": line.dash, "width": 1.5},
            hovertemplate=f"{line.text}<extra></extra>",
        )  # fmt: skip
    longest = max((row.step_us for row in rows), default=1.0)
    for component in in_decoder_order(row.component for row in rows):
        mine = [pair for pair in zip(rows, points, strict=True) if pair[0].component == component]
        # The area of a point is the time that the kernel takes of a step.
        sizes = [max(_SMALLEST, _LARGEST * math.sqrt(r.step_us / longest)) for r, _ in mine]
        figure.add_scatter(
            x=[x for _, (x, _) in mine],
            y=[y for _, (_, y) in mine],
            mode="markers",
            name=label(component),
            marker={"size": sizes, "color": COLORS.get(component, NEUTRAL), "opacity": 0.85,
                    "line": {"color": TEXT, "width": 1}},
            unselected={"marker": {"opacity": 0.85}},
            customdata=[[places.get(row.name, -1), component] for row, _ in mine],
            text=[_hover(row) for row, _ in mine],
            hovertemplate="%{text}<extra></extra>",
        )  # fmt: skip
    log = {"type": "log", "dtick": 1, "exponentformat": "SI"}
    figure.update_xaxes(**log, range=_decades([x for x, _ in inside]), title={"text": axes[0]})
    figure.update_yaxes(**log, range=_decades([y for _, y in inside]), title={"text": axes[1]})
    return figure


def _hover(row: RooflineRow) -> str:
    parts = [
        label(row.name, 60),
        "; ".join(label(word, 60) for word in (row.component, row.role, row.what) if word),
        f"{microseconds(row.us)} a call, {microseconds(row.step_us)} a step",
        f"{needed(row)}, {bandwidth(row.bandwidth)}",
        f"lower bound {microseconds(row.floor_us)}, "
        f"{share(row.of_reached)} of the measured read bandwidth",
    ]
    return "<br>".join(parts)


def _around(values: Sequence[float]) -> list[float]:
    """Points of a line that goes beyond all values, as far apart on a logarithmic axis."""
    low, high = _decades(values)
    step = (high - low) / (_POINTS_OF_A_LINE - 1)
    return [10 ** (low + place * step) for place in range(_POINTS_OF_A_LINE)]


def _decades(values: Sequence[float]) -> tuple[float, float]:
    some = [value for value in values if value > 0] or [1.0]
    return math.log10(min(some)) - 0.3, math.log10(max(some)) + 0.3

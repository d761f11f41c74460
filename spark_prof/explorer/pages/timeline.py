"""Time as it passed, in lanes: from the whole recording down to one kernel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import streamlit as st

from spark_prof.analyzers.model import Report
from spark_prof.analyzers.views.timeline import RankColumns, Timeline, timeline
from spark_prof.analyzers.views.timeline_calls import call_at
from spark_prof.analyzers.views.timeline_moves import Range, steps_in
from spark_prof.dashboards import chart_timeline_tables as tables
from spark_prof.dashboards.chart_timeline import axis_unit, timeline_figure
from spark_prof.datasets.prepared import Prepared
from spark_prof.explorer import cache, links, state, widgets
from spark_prof.explorer.page import Page, Sources
from spark_prof.explorer.timeline_moving import dragging, draw_buttons, draw_search
from spark_prof.explorer.timeline_state import View
from spark_prof.vocabulary import COMPONENTS

_BINS = 600
"""Over the width, where single kernels are too many: each is a mark in several lanes."""

_MOST_STEPS = 200

_RANKS_KEY, _RANKS = "timeline-ranks", "ranks"
_MOST_RANKS = 16
_CALL_COLUMNS = 3


def _show(sources: Sources) -> None:
    shown = sources.shown
    if not shown.timed:
        widgets.lines(["The source has sums of kernels: nothing tells when one ran."])
        return
    if not len(shown.kernels):
        widgets.lines(["The source has no kernels: there is nothing to draw."])
        return
    view = View.of_address(shown)
    _follow(view)
    draw_buttons(view)
    draw_search(view)
    others = _choose_others(shown)
    drawn = _drawn(shown, others, view.shown.from_ns, view.shown.to_ns)
    columns = {shown.rank: shown.kernels} | {other.rank: other.columns for other in others}
    figure = timeline_figure(drawn, columns, view.origin_ns, view.call)
    # Streamlit tells of a click or of a stretch, not of both: a figure that takes one is made anew
    # for the other.
    figure.update_layout(dragmode="select" if dragging() else False)
    widgets.figure(figure, _name(view), selection=("points", "box"))
    widgets.lines([_how_to_read(drawn)])
    if view.call is not None:
        _show_call(view, view.call)
    _numbers(view, drawn)


def _rank_identity(other: RankColumns) -> tuple[int, int, int]:
    return other.rank, len(other.columns), int(other.columns.end_ns[-1:].sum())


@st.cache_data(
    show_spinner=False,
    max_entries=32,
    hash_funcs={**cache.BY_RECORDING, RankColumns: _rank_identity},
)
def _drawn(shown: Prepared, others: Sequence[RankColumns], from_ns: int, to_ns: int) -> Timeline:
    return timeline(
        shown.kernels, shown.steps, from_ns, to_ns, _BINS, rank=shown.rank, others=others
    )


def _name(view: View) -> str:
    """Of the figure, another for each picture: what was chosen in one is gone in the next."""
    begin, end = view.relative(view.shown)
    called = f"-{view.call}" if view.call is not None else ""
    return f"timeline-{begin}-{end}{called}{'-drag' if dragging() else ''}"


def _follow(view: View) -> None:
    """Goes where the last click in the figure leads, before anything is drawn."""
    event: Any = st.session_state.get(_name(view))
    if not event or not event.get("selection"):
        return
    chosen = event["selection"]
    for box in chosen.get("box", ()):
        _, ns = axis_unit(view.shown.length_ns)
        low, high = sorted(float(x) for x in box["x"][:2])
        view.go(Range(view.shown.from_ns + int(low * ns), view.shown.from_ns + int(high * ns)))
        return
    for point in chosen.get("points", ()):
        place, lane, begin, end = map(int, point["customdata"])
        if place >= 0:
            view.choose(place)
        else:
            view.open(Range(view.origin_ns + begin, view.origin_ns + end), exact=lane < 2)
        return


def _how_to_read(drawn: Timeline) -> str:
    if dragging():
        return "Drag over a stretch to zoom into it. Where the ground shows, nothing ran."
    marks = (
        "Each mark of a stream is a kernel: click one for its details."
        if drawn.exact
        else "A mark is as high as the share of its time in which something ran, and has the "
        "colour of what took most of it: click one to look closer."
    )
    return f"{marks} Where the ground shows, nothing ran."


def _numbers(view: View, drawn: Timeline) -> None:
    steps = steps_in(view.prepared.steps, view.shown)
    facts = tables.numbers(drawn, len(steps))
    widgets.facts(facts, len(facts))
    left, right = st.columns([2, 3])
    with left:
        st.subheader("Components in this range", anchor="components")
        widgets.table(tables.component_table(drawn), f"components-{_name(view)}")
    with right:
        st.subheader("Longest gaps in this range", anchor="gaps")
        widgets.lines(["Choose a row to see it."])
        frame = tables.gap_table(drawn, view.prepared.kernels, view.origin_ns)
        for row in widgets.table(frame, f"gaps-{_name(view)}", selectable=True):
            gap = drawn.gaps[row]
            found = Range(gap.begin_ns, gap.end_ns)
            view.go(found.around(gap.begin_ns + gap.length_ns // 2, 3 * gap.length_ns))
            st.rerun()
    if len(steps):
        st.subheader("Steps that it touches", anchor="steps")
        widgets.lines(["Choose a row to see that step."])
        for row in widgets.table(
            tables.steps_table(steps.head(_MOST_STEPS)), f"steps-{_name(view)}", selectable=True
        ):
            view.go_to_step(int(steps["step"].iloc[row]))
            st.rerun()
        if len(steps) > _MOST_STEPS:
            widgets.lines([f"The first {_MOST_STEPS} of {len(steps):,}."])


def _choose_others(shown: Prepared) -> list[RankColumns]:
    """Draws the choice of other ranks where there are any, and reads the chosen ones."""
    others = [rank for rank in shown.ranks if rank != shown.rank]
    if not others:
        return []
    named = {int(text) for text in state.chosen(_RANKS).split(",") if text.isdecimal()}
    st.session_state[_RANKS_KEY] = [rank for rank in others if rank in named][:_MOST_RANKS]

    def changed() -> None:
        state.keep(**{_RANKS: ",".join(map(str, st.session_state[_RANKS_KEY])) or None})

    chosen = st.multiselect(
        "Other ranks, each as a lane",
        others,
        key=_RANKS_KEY,
        on_change=changed,
        format_func=lambda rank: f"rank {rank}",
        max_selections=_MOST_RANKS,
    )
    found = []
    for rank in chosen:
        kernels = cache.read(shown.source, rank, f"rank {rank}").kernels
        found.append(RankColumns(rank, kernels, _ahead_ns(shown.report, rank, shown.rank)))
    if found and not _comparable(shown.report, [shown.rank, *chosen]):
        widgets.lines(["Nothing tells how far the clocks of these ranks are apart."])
    return found


def _ahead_ns(report: Report, rank: int, shown: int) -> int:
    """By how much the clock of a rank is ahead of the shown one's; 0 where nothing tells."""
    offsets = {row.rank: row.offset_us for row in report.collectives.clocks if not row.same_host}
    return round(((offsets.get(rank) or 0.0) - (offsets.get(shown) or 0.0)) * 1e3)


def _comparable(report: Report, ranks: list[int]) -> bool:
    unknown = {
        row.rank for row in report.collectives.clocks if not row.same_host and row.offset_us is None
    }
    return unknown.isdisjoint(ranks)


def _show_call(view: View, place: int) -> None:
    """Draws all that is known of a call, and the ways on from it."""
    kernels = view.prepared.kernels
    call = call_at(kernels, place)
    name = int(kernels.name[place])
    component, layer = COMPONENTS[int(kernels.component[place])], int(kernels.layer[place])
    st.subheader("This kernel", anchor="kernel")
    widgets.lines([kernels.names[name]])
    with st.container(horizontal=True):
        _button("Show it closer", view, place)
        _button("The one before it", view, call.before)
        _button("The one after it", view, call.after)
        st.button("Close", key="timeline-close", on_click=view.close)
    facts = tables.call_facts(call, kernels, view.prepared.report, view.origin_ns)
    widgets.facts(facts, _CALL_COLUMNS)
    with st.container(horizontal=True):
        links.link("kernels", "All calls of this kernel", kernel=name, component=component)
        if layer >= 0:
            links.link("layers", f"Layer {layer}", layer=layer, component=component)


def _button(text: str, view: View, place: int) -> None:
    st.button(text, key=f"timeline-{text}", on_click=view.jump, args=(place,), disabled=place < 0)


PAGE = Page("timeline", "Timeline", _show)

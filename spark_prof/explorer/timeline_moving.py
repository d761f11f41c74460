"""The buttons above the time line, and its search."""

from __future__ import annotations

import streamlit as st

from spark_prof.analyzers.views.timeline_calls import find_call
from spark_prof.analyzers.views.timeline_moves import Range, neighbour_step, typical
from spark_prof.dashboards.formats import counted
from spark_prof.explorer import state, widgets
from spark_prof.explorer.timeline_state import View

_TEXT, _FOUND = "timeline-search", "timeline-found"
_DRAGS = "timeline-drags"
_LONGEST = 500


def draw_buttons(view: View) -> None:
    """Draws the ways to other ranges."""
    shown, steps = view.shown, view.prepared.steps
    decodes = bool((steps["phase"].astype(str) == "decode").any())
    noun = "decode step" if decodes else "step"
    with st.container(horizontal=True):
        _button("Whole recording", view, view.recording)
        _step_button(f"Median {noun}", view, typical(steps, "median"))
        _step_button(f"Slowest {noun}", view, typical(steps, "slowest"))
        _step_button("Previous step", view, neighbour_step(steps, shown, later=False))
        _step_button("Next step", view, neighbour_step(steps, shown, later=True))
    with st.container(horizontal=True, vertical_alignment="center"):
        _button("Earlier", view, shown.moved(later=False))
        _button("Later", view, shown.moved(later=True))
        for factor in (2, 10):
            _button(f"Zoom in {factor}x", view, shown.zoomed(factor, closer=True))
        for factor in (2, 10):
            _button(f"Zoom out {factor}x", view, shown.zoomed(factor, closer=False))
        st.toggle("Drag to zoom", key=_DRAGS)


def dragging() -> bool:
    """Whether the mouse chooses a stretch to zoom into, and not a mark."""
    return bool(st.session_state.get(_DRAGS, False))


def draw_search(view: View) -> None:
    """Draws the search for the next call of a kernel."""
    kernels = view.prepared.kernels
    named = state.chosen_number("kernel", -1, 0, len(kernels.names) - 1)
    form = st.form("timeline-form", border=False)
    with form, st.container(horizontal=True, vertical_alignment="bottom"):
        st.text_input(
            "Kernel whose name contains",
            value=kernels.names[named][:_LONGEST] if named >= 0 else "",
            key=_TEXT,
            placeholder="attention, gemm, all_reduce ...",
        )
        st.form_submit_button("Find next call", on_click=_find, args=(view,))
    if found := st.session_state.pop(_FOUND, ""):
        widgets.lines([found])


def _find(view: View) -> None:
    text = st.session_state[_TEXT]
    kernels = view.prepared.kernels
    found = find_call(kernels, text, view.call if view.call is not None else _before(view))
    if found.place < 0:
        st.session_state[_FOUND] = f"No kernel has a name that contains {text}." if text else ""
        return
    again = " None was left, so this is the first call of the recording." if found.wrapped else ""
    st.session_state[_FOUND] = f"{counted(found.names, 'kernel')} with such a name.{again}"
    view.jump(found.place)


def _before(view: View) -> int:
    start = view.prepared.kernels.start_ns
    return int(start.searchsorted(view.shown.from_ns)) - 1


def _step_button(text: str, view: View, number: int | None) -> None:
    st.button(
        text,
        key=f"timeline-{text}",
        on_click=view.go_to_step,
        args=(number,),
        disabled=number is None,
    )


def _button(text: str, view: View, shown: Range) -> None:
    st.button(text, key=f"timeline-{text}", on_click=view.go, args=(shown,))

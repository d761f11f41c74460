"""The details of one call, below the time line."""

from __future__ import annotations

import streamlit as st

from spark_prof.analyzers.views.timeline_calls import call_at
from spark_prof.dashboards import chart_timeline_tables as tables
from spark_prof.explorer import links, widgets
from spark_prof.explorer.timeline_state import View
from spark_prof.vocabulary import COMPONENTS

__all__ = ["show_call"]

_COLUMNS = 3


def show_call(view: View, place: int) -> None:
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
    widgets.facts(facts, _COLUMNS)
    with st.container(horizontal=True):
        links.link("kernels", "All calls of this kernel", kernel=name, component=component)
        if layer >= 0:
            links.link("layers", f"Layer {layer}", layer=layer, component=component)


def _button(text: str, view: View, place: int) -> None:
    st.button(text, key=f"timeline-{text}", on_click=view.jump, args=(place,), disabled=place < 0)

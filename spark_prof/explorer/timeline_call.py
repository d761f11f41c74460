"""The details of one call, below the time line."""

from __future__ import annotations

from collections.abc import Sequence

import streamlit as st

from spark_prof.analyzers.views.timeline_calls import call_at
from spark_prof.dashboards import chart_timeline_tables as tables
from spark_prof.dashboards.formats import clean
from spark_prof.explorer import links, widgets
from spark_prof.explorer.timeline_state import View
from spark_prof.vocabulary import COMPONENTS

__all__ = ["show_call", "show_facts"]

_COLUMNS = 3


def show_call(view: View, place: int) -> None:
    """Draws all that is known of a call, and the ways on from it."""
    kernels = view.prepared.kernels
    call = call_at(kernels, place)
    name = int(kernels.name[place])
    component, layer = COMPONENTS[int(kernels.component[place])], int(kernels.layer[place])
    st.subheader("This kernel", anchor="kernel")
    st.code(clean(kernels.names[name]), language=None, wrap_lines=True)
    with st.container(horizontal=True):
        _button("Show it closer", view, place)
        _button("The one before it", view, call.before)
        _button("The one after it", view, call.after)
        st.button("Close", key="timeline-close", on_click=view.close)
    facts = tables.call_facts(call, kernels, view.prepared.report, view.origin_ns)
    show_facts(facts, _COLUMNS)
    with st.container(horizontal=True):
        links.link("kernels", "All calls of this kernel", kernel=name, component=component)
        if layer >= 0:
            links.link("layers", f"Layer {layer}", layer=layer, component=component)


def show_facts(facts: Sequence[tuple[str, str]], columns: int) -> None:
    """Draws what each fact is called and, below that, the fact; so many beside each other."""
    for begin in range(0, len(facts), columns):
        row = facts[begin : begin + columns]
        for column, (name, fact) in zip(st.columns(columns), row, strict=False):
            with column, st.container(gap=None):
                st.caption(widgets.plain(name))
                widgets.lines([fact])


def _button(text: str, view: View, place: int) -> None:
    st.button(text, key=f"timeline-{text}", on_click=view.jump, args=(place,), disabled=place < 0)

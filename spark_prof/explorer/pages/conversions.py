"""What changing formats costs: for which kernels, in which layers, and how often in vain."""

from __future__ import annotations

import streamlit as st

from spark_prof.dashboards import about_conversions, chart_conversions
from spark_prof.datasets.prepared import Prepared
from spark_prof.explorer import links, places, widgets
from spark_prof.explorer.finding_cards import finding_cards
from spark_prof.explorer.page import Page, Sources

__all__ = ["PAGE"]


def _show(sources: Sources) -> None:
    shown = sources.shown
    found = shown.report.conversions
    if not found.charged and not found.padding and not found.fused and not found.load_time:
        widgets.lines(["No kernel of this recording changes a format."])
        return
    if found.charged:
        _cost(shown)
    about = [f for f in shown.report.findings if places.page_of(f) == "conversions"]
    if about:
        st.subheader("What to do about it", anchor="findings")
        finding_cards(about, shown, "conversions")
    for drawn in (
        about_conversions.charged(shown.report),
        about_conversions.repeated(shown.report),
        about_conversions.others(shown.report),
    ):
        widgets.section(drawn)


def _cost(shown: Prepared) -> None:
    widgets.lines(["The colour is that of the component. Click a bar for its kernel."])
    figure = chart_conversions.most_expensive(shown.report)
    chosen = widgets.figure(figure, "conversions", selection=("points",))
    for point in chosen.points if chosen else ():
        place = int(point["customdata"])
        name = chart_conversions.ranked(shown.report)[place].name if place >= 0 else ""
        if name in shown.kernels.names:
            links.go("kernels", kernel=shown.kernels.names.index(name))
    if any(row.layer is not None for row in shown.report.conversions.layers):
        figure = chart_conversions.by_layer(shown.report)
        chosen = widgets.figure(figure, "conversions-by-layer", selection=("points",))
        for point in chosen.points if chosen else ():
            links.go("layers", layer=int(point["customdata"]))


PAGE = Page("conversions", "Conversions", _show)

"""Which kernels were chosen for which layers, who says so, and what would choose others."""

from __future__ import annotations

import streamlit as st

from spark_prof.dashboards import about_audit, about_kernels, about_machine_code, about_settings
from spark_prof.explorer import links, widgets
from spark_prof.explorer.links import finding_cards, follow_cards
from spark_prof.explorer.page import Page, Sources

_ABOUT_ENGINE = (
    about_settings.settings,
    about_settings.batches,
    about_audit.engine,
    about_audit.log,
    about_audit.notes,
)


def _show(sources: Sources) -> None:
    shown = sources.shown
    report = shown.report
    audit = report.audit
    about = [f for f in report.findings if links.page_of(f) == "fallbacks"]
    follow_cards(about, shown)
    if about:
        st.subheader("What to do about it", anchor="findings")
        finding_cards(about, "fallbacks")
    else:
        widgets.lines(["No rule about fallbacks found anything worth changing."])
    if audit is None:
        widgets.lines(
            [
                "Nothing tells what the checkpoint asks for: a recording of spark-prof or a log of "
                "the engine does (spark-prof report --log)."
            ]
        )
    else:
        layers = about_audit.layers(audit)
        widgets.section(layers)
        if not layers.rows:
            widgets.lines(["No layer of this checkpoint is quantized: nothing can fall back."])
        widgets.lines(audit.conflicts)
        for draw in _ABOUT_ENGINE:
            widgets.section(draw(audit))
    widgets.section(about_machine_code.machine_code(report))
    widgets.section(about_kernels.modules(report))


PAGE = Page("fallbacks", "Fallbacks", _show)

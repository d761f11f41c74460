"""The page of a result of `spark-prof ab`: the document and the figures of its report."""

from __future__ import annotations

from pathlib import Path

import streamlit as st

from spark_prof.ab.result import read_result
from spark_prof.dashboards import ab_report, chart_compare
from spark_prof.explorer import widgets


def show(path: Path) -> None:
    result = read_result(path)
    drawn = ab_report.document(result, each_layer=True)
    figures = chart_compare.ab_figures(result)
    st.subheader(widgets.plain(drawn.title), anchor="answer")
    widgets.facts(drawn.headline, max(len(drawn.headline), 1))
    for section in drawn.sections:
        widgets.section(section)
        if section.id in figures:
            widgets.figure(figures[section.id], f"{section.id}-figure")

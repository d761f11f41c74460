"""The page of a result of `ab`, `tune` or `speculate`: the document and figures of its report."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import streamlit as st

from spark_prof.ab.result import read_result
from spark_prof.dashboards import (
    ab_report,
    chart_compare,
    chart_speculate,
    speculate_report,
    tune_report,
)
from spark_prof.dashboards.charts import Plot
from spark_prof.explorer import widgets
from spark_prof.speculate.speculate_result import read_speculate
from spark_prof.traces.resolve import command_of_result
from spark_prof.tune.tune_result import read_tune


def show(path: Path) -> None:
    figures: Mapping[str, Plot] = {}
    command = command_of_result(path)
    if command == "tune":
        drawn = tune_report.document(read_tune(path))
    elif command == "speculate":
        drafted = read_speculate(path)
        drawn = speculate_report.document(drafted)
        figures = chart_speculate.speculate_figures(drafted)
    else:
        result = read_result(path)
        drawn = ab_report.document(result, each_layer=True)
        figures = chart_compare.ab_figures(result)
    st.subheader(widgets.plain(drawn.title), anchor="answer")
    if drawn.caveats:
        widgets.lines(*drawn.caveats)
    widgets.facts(drawn.headline, max(len(drawn.headline), 1))
    first = next(iter(figures), None)
    if first:
        widgets.figure(figures[first], f"{first}-figure")
    for section in drawn.sections:
        widgets.section(section)
        if section.id in figures and section.id != first:
            widgets.figure(figures[section.id], f"{section.id}-figure")

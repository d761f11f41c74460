"""The page that holds a recording against another one: where the difference comes from."""

from __future__ import annotations

import pandas as pd
import streamlit as st

from spark_prof.analyzers.classify.classifier import short_names
from spark_prof.analyzers.comparing.compare_sides import compare
from spark_prof.analyzers.comparing.comparison import ComparedRecording, Comparison, PhaseComparison
from spark_prof.dashboards import compare_sections
from spark_prof.dashboards.chart_compare import (
    component_pairs,
    difference_waterfall,
    layer_differences,
)
from spark_prof.dashboards.compare_answer import answer
from spark_prof.dashboards.compare_gate import SideNames, verdict
from spark_prof.dashboards.section import Section, without_empty_columns
from spark_prof.dashboards.units import clean, spans
from spark_prof.datasets.opened import facts_of
from spark_prof.datasets.prepared import Prepared
from spark_prof.explorer import state, widgets
from spark_prof.explorer.cache import BY_RECORDING
from spark_prof.explorer.links import clicked
from spark_prof.explorer.state import Sources

_PARTS = "parts"
_ONE_ONLY = (
    "This page holds one recording against another: where the difference comes from, and how "
    "sure that is.",
    "Only one is open. Give several, the reference first: spark-prof explore BEFORE AFTER",
    "The same as text, and as a gate for CI: spark-prof compare BEFORE AFTER",
)


@st.cache_resource(show_spinner="Comparing", max_entries=4, hash_funcs=BY_RECORDING)
def _compared(reference: Prepared, other: Prepared) -> Comparison:
    return compare(_side(reference), _side(other))


def _side(prepared: Prepared) -> ComparedRecording:
    return ComparedRecording(
        prepared.source,
        prepared.report,
        prepared.kernels,
        prepared.steps,
        facts_of(prepared.source, prepared.rank),
    )


def show(sources: Sources) -> None:
    if len(sources.labels) < 2:
        widgets.lines(*_ONE_ONLY)
        return
    if point := clicked(_PARTS):
        state.keep(component=str(point[0]))
    places = [place for place in range(len(sources.labels)) if place != sources.place]
    left, right = st.columns(2)
    with left:
        chosen = widgets.choice(
            "Beside",
            [sources.labels[place] for place in places],
            "other",
            values=[str(place) for place in places],
        )
    other = sources.read(places[chosen])
    # As `spark-prof compare A B` has it: what was named first is the reference.
    first = sources.place < places[chosen]
    comparison = _compared(*((sources.prepared, other) if first else (other, sources.prepared)))
    with right:
        names = [phase.phase for phase in comparison.phases]
        phase = comparison.phases[widgets.choice("Steps", names, "phase", values=names)]
    sides = SideNames(*comparison.names)
    st.subheader(widgets.plain(answer(comparison)), anchor="answer")
    _sources_of_difference(phase, sides, all(comparison.eager))
    _kernels(phase, sides)
    for section in (
        compare_sections.engines(phase, sides),
        compare_sections.setup(comparison, sides),
        compare_sections.whole_figures(comparison, sides),
        compare_sections.findings(comparison, sides),
        compare_sections.notes(comparison, sides),
    ):
        _section(section)


def _sources_of_difference(phase: PhaseComparison, sides: SideNames, eager: bool) -> None:
    left, right = st.columns(2)
    with left:
        if phase.obstacle is None:
            widgets.figure(difference_waterfall(phase, sides), "difference")
    with right:
        drawn = component_pairs(phase, sides)
        widgets.figure(drawn, _PARTS, selection=("points",))
    _section(compare_sections.steps(phase, sides))
    _section(compare_sections.components(phase, sides, eager))
    sure = any(row.change.sure for row in phase.layer_parts if row.layer is not None)
    if sure and phase.obstacle is None:
        widgets.figure(layer_differences(phase), "layers")
    _section(compare_sections.layers(phase, sides))


def _kernels(phase: PhaseComparison, sides: SideNames) -> None:
    """All kernels, or those of the chosen component, as a table of numbers."""
    st.subheader("Kernels of both sides", anchor="compare-kernels")
    names = [part.name for part in phase.parts if part.calls_a or part.calls_b]
    place = widgets.choice("Component", ["all", *names], "component", values=["", *names])
    rows = [row for row in phase.kernels if not place or row.component == names[place - 1]]
    called = short_names(row.name for row in rows)
    where = {"only a": f"only {sides.a}", "only b": f"only {sides.b}"}
    frame = pd.DataFrame(
        {
            "Kernel": [clean(called[row.name]) for row in rows],
            "Component": [row.component for row in rows],
            "In": [where.get(row.where, row.where) for row in rows],
            f"{sides.a}, us": [round(row.change.a, 2) for row in rows],
            f"{sides.b}, us": [round(row.change.b, 2) for row in rows],
            "Change, us": [round(row.change.us, 2) for row in rows],
            "From, us": [round(row.change.low, 2) for row in rows],
            "To, us": [round(row.change.high, 2) for row in rows],
            f"{sides.b} is": [verdict(row.change) for row in rows],
            f"Calls, {sides.a}": [round(row.calls_a, 2) for row in rows],
            f"Calls, {sides.b}": [round(row.calls_b, 2) for row in rows],
            f"Layers, {sides.a}": [spans(row.layers_a) for row in rows],
            f"Layers, {sides.b}": [spans(row.layers_b) for row in rows],
            f"Execution unit, {sides.a}": [row.engine_a for row in rows],
            f"Execution unit, {sides.b}": [row.engine_b for row in rows],
        }
    )
    widgets.lines("From and to are the 95 % interval of the change; the slower ones come first.")
    widgets.table(frame, "compare-kernels", full=[row.name for row in rows])


def _section(section: Section) -> None:
    if section.rows:
        widgets.section(without_empty_columns(section))

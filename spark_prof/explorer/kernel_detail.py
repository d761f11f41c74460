"""Draws all that is known about one kernel."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
import streamlit as st

from spark_prof.analyzers.findings.naming import short_name
from spark_prof.analyzers.views.kernel_calls import (
    KernelCalls,
    LayerUse,
    calls_of,
    durations,
    launches,
    layers,
    over_steps,
)
from spark_prof.analyzers.views.kernel_table import KernelFacts
from spark_prof.dashboards import about_cells
from spark_prof.dashboards.chart_calls import call_histogram, calls_by_layer, calls_over_steps
from spark_prof.dashboards.formats import count, counted, microseconds, spans
from spark_prof.dashboards.section import Section
from spark_prof.dashboards.sections import one_kernel_section
from spark_prof.datasets.prepared import Prepared
from spark_prof.explorer import clicks, links, widgets

_BY_LAYER = "kernel-layers"


def kernel_detail(prepared: Prepared, name: int, facts: Sequence[KernelFacts]) -> None:
    """Draws one kernel.

    Args:
        prepared: the recording.
        name: place of the kernel in its names.
        facts: what the report says of it, the component to begin with first; empty of a copy or of
            what ran in no analyzed step.
    """
    for layer, of in clicks.points(_BY_LAYER):
        links.go("layers", layer=str(layer), component=str(of))
    full = prepared.kernels.names[name]
    st.subheader(widgets.plain(short_name(full)), anchor=False)
    if short_name(full) != full:
        widgets.lines([full])
    reasons = list(dict.fromkeys(one_kernel_section.reason(entry.row) for entry in facts))
    if prepared.kernels.copies[name]:
        reasons = ["A copy or a memset: no sum of kernels contains it."]
    widgets.lines([*reasons, *about_cells.placed_by(prepared.report)])
    calls = calls_of(prepared.kernels, prepared.steps, name)
    component = facts[0].row.component if facts else "other"
    left, right = st.columns(2)
    with left:
        for entry in facts:
            _section(one_kernel_section.facts(entry), entry.row.component)
            _section(one_kernel_section.floor(entry.floor), entry.row.component)
        _findings(prepared, full)
    with right:
        for row in (row for row in prepared.report.machine_code if row.name == full):
            _section(one_kernel_section.code([row]), row.cubin)
        for section in (
            one_kernel_section.streamed(prepared.report, component),
            one_kernel_section.counters(prepared.report, full),
        ):
            _section(section)
    if not len(calls):
        widgets.lines(["No analyzed step calls it."])
        return
    _section(one_kernel_section.launches(launches(calls, prepared.kernels), full, component,
                                   prepared.report))  # fmt: skip
    _figures(prepared, calls, component)


def _section(section: Section, key: str = "") -> None:
    if section.rows:
        st.subheader(widgets.plain(section.title), anchor=False)
        widgets.lines(section.intro)
        titles = [column.title for column in section.columns]
        frame = pd.DataFrame(list(section.rows), columns=titles, dtype=object)
        widgets.table(frame, f"kernel-{section.id}{'-' * bool(key)}{key}")


def _findings(prepared: Prepared, full: str) -> None:
    found = one_kernel_section.named_by(prepared.report.findings, full)
    st.subheader("Findings that name it", anchor=False)
    if not found:
        widgets.lines(["None."])
    for finding in found:
        gain = "" if finding.ms_per_token is None else f"{finding.ms_per_token:.2f} ms per token: "
        widgets.lines([f"{gain}{finding.text} {finding.fix}"])


def _figures(prepared: Prepared, calls: KernelCalls, component: str) -> None:
    found = durations(calls)
    if found is None:
        return
    if not prepared.timed:
        widgets.lines(["The recording has sums only: nothing tells how long single calls took."])
        return
    uses = layers(calls)
    left, right = st.columns(2)
    with left:
        widgets.figure(call_histogram(found, component), "kernel-durations")
        widgets.lines(
            [
                f"{counted(calls.all, 'call')}: median {microseconds(found.median_us)}, p90 "
                f"{microseconds(found.p90_us)}, p99 {microseconds(found.p99_us)}, from "
                f"{microseconds(found.least_us)} to {microseconds(found.most_us)}."
            ]
        )
        if len(calls) < calls.all:
            widgets.lines([f"Figures show {count(len(calls))} of these calls, evenly spread."])
    series = over_steps(calls, prepared.steps)
    if len(series.step) > 1:
        with right:
            widgets.figure(calls_over_steps(series, component), "kernel-steps")
            low, high = float(series.median_us.min()), float(series.median_us.max())
            widgets.lines(
                [
                    "In the course of the recording the median is between "
                    f"{microseconds(low)} and {microseconds(high)}."
                ]
            )
    if len({use.layer for use in uses if use.layer >= 0}) > 1:
        widgets.figure(calls_by_layer(uses), _BY_LAYER, selection=("points",))
    widgets.lines(_used_in(uses))


def _used_in(uses: Sequence[LayerUse]) -> list[str]:
    """The layers of each component, in words."""
    texts = []
    for component in dict.fromkeys(use.component for use in uses):
        mine = [use for use in uses if use.component == component]
        inside = [use.layer for use in mine if use.layer >= 0]
        if inside:
            slow = max((use for use in mine if use.layer >= 0), key=lambda use: use.median_us)
            texts.append(
                f"For {component} in {'layer' if len(inside) == 1 else 'layers'} {spans(inside)}; "
                f"the slowest is layer {slow.layer}, {microseconds(slow.median_us)} a call."
            )
        texts += [
            f"For {component} outside the layers: {counted(use.calls, 'call')}, median "
            f"{microseconds(use.median_us)}."
            for use in mine
            if use.layer < 0
        ]
    return texts

"""The page of kernels: a table to search, the roofline, and all about one kernel."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
import streamlit as st

from spark_prof.analyzers.classify.classifier import short_name
from spark_prof.analyzers.views.kernel_calls import (
    KernelCalls,
    KernelFacts,
    LayerUse,
    calls_of,
    durations,
    facts_of,
    launches,
    layers,
    over_steps,
    search,
)
from spark_prof.dashboards import about_cells
from spark_prof.dashboards.chart_calls import call_histogram, calls_by_layer, calls_over_steps
from spark_prof.dashboards.section import Section
from spark_prof.dashboards.sections import one_kernel_section, roofline_section
from spark_prof.dashboards.sections.roofline_section import (
    bytes_and_time,
    intensity,
    with_intensity,
    with_need,
)
from spark_prof.dashboards.units import clean, count, counted, microseconds, share, spans
from spark_prof.datasets.prepared import Prepared
from spark_prof.explorer import links, state, widgets
from spark_prof.explorer.page import Sources

_BY_LAYER = "kernel-layers"


def kernel_detail(prepared: Prepared, name: int, facts: Sequence[KernelFacts]) -> None:
    """Draws one kernel.

    Args:
        name: place of the kernel in its names.
        facts: what the report says of it, the component to begin with first; empty of a copy or of
            what ran in no analyzed step.
    """
    for layer, of in links.chosen_points(_BY_LAYER):
        links.go("layers", layer=str(layer), component=str(of))
    full = prepared.kernels.names[name]
    st.subheader(widgets.plain(short_name(full)), anchor=False)
    if short_name(full) != full:
        widgets.lines(full)
    reasons = list(dict.fromkeys(one_kernel_section.reason(entry.row) for entry in facts))
    if prepared.kernels.copies[name]:
        reasons = ["A copy or a memset: no sum of kernels contains it."]
    widgets.lines(*reasons, *about_cells.placed_by(prepared.report))
    if prepared.timed:
        links.link("timeline", "Its first call in the Timeline", kernel=name)
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
        widgets.lines("No analyzed step calls it.")
        return
    _section(one_kernel_section.launches(launches(calls, prepared.kernels), full, component,
                                   prepared.report))  # fmt: skip
    _figures(prepared, calls, component)


def _section(section: Section, key: str = "") -> None:
    if section.rows:
        st.subheader(widgets.plain(section.title), anchor=False)
        widgets.lines(*section.intro)
        widgets.table(widgets.frame_of(section), f"kernel-{section.id}{'-' * bool(key)}{key}")


def _findings(prepared: Prepared, full: str) -> None:
    found = one_kernel_section.named_by(prepared.report.findings, full)
    st.subheader("Findings that name it", anchor=False)
    if not found:
        widgets.lines("None.")
    for finding in found:
        gain = "" if finding.ms_per_token is None else f"{finding.ms_per_token:.2f} ms per token: "
        widgets.lines(f"{gain}{finding.text} {finding.fix}")


def _figures(prepared: Prepared, calls: KernelCalls, component: str) -> None:
    found = durations(calls)
    if found is None:
        return
    if not prepared.timed:
        widgets.lines("The recording has sums only: nothing tells how long single calls took.")
        return
    uses = layers(calls)
    left, right = st.columns(2)
    with left:
        widgets.figure(call_histogram(found, component), "kernel-durations")
        widgets.lines(
            f"{counted(calls.all, 'call')}: median {microseconds(found.median_us)}, p90 "
            f"{microseconds(found.p90_us)}, p99 {microseconds(found.p99_us)}, from "
            f"{microseconds(found.least_us)} to {microseconds(found.most_us)}."
        )
        if len(calls) < calls.all:
            widgets.lines(f"Figures show {count(len(calls))} of these calls, evenly spread.")
    series = over_steps(calls, prepared.steps)
    if len(series.step) > 1:
        with right:
            widgets.figure(calls_over_steps(series, component), "kernel-steps")
            low, high = float(series.median_us.min()), float(series.median_us.max())
            widgets.lines(
                "In the course of the recording the median is between "
                f"{microseconds(low)} and {microseconds(high)}."
            )
    if len({use.layer for use in uses if use.layer >= 0}) > 1:
        widgets.figure(calls_by_layer(uses), _BY_LAYER, selection=("points",))
    widgets.lines(*_used_in(uses))


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


_TABLE, _BYTES, _INTENSITY = "kernels", "bytes-and-time", "intensity"
_FILTERS = ("text", "engine", "precision")
"""Of the table, beside the component, which the address of a kernel names as well."""


def show(sources: Sources) -> None:
    prepared = sources.shown
    facts = facts_of(prepared.report, prepared.kernels.names)
    name = state.chosen_number("kernel", -1, 0, len(prepared.kernels.names) - 1)
    if name >= 0:
        links.link("kernels", "All kernels", **_filters())
        component = state.chosen("component")
        mine = [entry for entry in facts if entry.place == name]
        kernel_detail(
            prepared, name, sorted(mine, key=lambda entry: entry.row.component != component)
        )
        return
    found = _found(facts)
    _follow(found)
    _search(facts)
    _table(found, facts)
    _roofline(prepared, facts)


def _filters() -> dict[str, str]:
    """What the table is searched for, as the address says it."""
    return {word: state.chosen(word) for word in _FILTERS if state.chosen(word)}


def _follow(found: Sequence[KernelFacts]) -> None:
    """Goes to the kernel that was chosen last, before anything is drawn."""
    chosen = [(found[row].place, found[row].row.component) for row in links.chosen_rows(_TABLE)[:1]
              if row < len(found)]  # fmt: skip
    points = [*links.chosen_points(_BYTES), *links.chosen_points(_INTENSITY)]
    for place, component in [*chosen, *points]:
        if int(place) >= 0:
            links.go("kernels", **_filters(), kernel=int(place), component=str(component))


def _values(facts: Sequence[KernelFacts]) -> dict[str, tuple[str, ...]]:
    """What can be chosen from, by its name in the address; the empty one is any."""
    rows = [entry.row for entry in facts]
    values = {
        "engine": {row.engine for row in rows},
        "precision": {row.precision or "" for row in rows},
        "component": {row.component for row in rows},
    }
    return {name: ("", *sorted(words - {""})) for name, words in values.items()}


def _found(facts: Sequence[KernelFacts]) -> tuple[KernelFacts, ...]:
    """The kernels that the address asks for."""
    chosen = [state.chosen(name, "", words) for name, words in _values(facts).items()]
    return search(facts, state.chosen("text"), *chosen)


def _search(facts: Sequence[KernelFacts]) -> None:
    """Draws what can be looked for."""
    columns = st.columns([2, 1, 1, 1])
    with columns[0]:
        _text()
    for column, (name, words) in zip(columns[1:], _values(facts).items(), strict=True):
        with column:
            widgets.choice(name.capitalize(), ["any", *words[1:]], name, values=words)


def _text() -> None:
    st.session_state["kernels-text"] = state.chosen("text")

    def changed() -> None:
        state.keep(text=st.session_state["kernels-text"] or None)

    st.text_input("Search", key="kernels-text", on_change=changed, max_chars=200,
                  placeholder="words of the name, component, role or conversion")  # fmt: skip


def _table(found: Sequence[KernelFacts], facts: Sequence[KernelFacts]) -> None:
    us = sum(entry.row.us for entry in found)
    part = sum(entry.row.share for entry in found)
    widgets.lines(
        f"{count(len(found))} of {counted(len(facts), 'kernel')}: {microseconds(us)}, "
        f"{share(part)} of all kernel time. Choose a row to see all about it."
    )
    frame = _frame(found)
    full = [clean(entry.row.name) for entry in found]
    widgets.table(frame, _TABLE, selectable=True, whole=frame.assign(**{"Full name": full}))


def _frame(found: Sequence[KernelFacts]) -> pd.DataFrame:
    rows = [entry.row for entry in found]
    floors = [entry.floor for entry in found]
    return pd.DataFrame(
        {
            "Kernel": [clean(short_name(row.name)) for row in rows],
            "Component": [row.component for row in rows],
            "Role": [clean(", ".join(row.roles)) for row in rows],
            "Reads": [clean(f.what) if f else "" for f in floors],
            "Time, ms": [round(row.us / 1e3, 3) for row in rows],
            "Share, %": [round(100 * row.share, 2) for row in rows],
            "Calls a step": [round(entry.calls, 2) for entry in found],
            "us a call": [round(row.us / row.calls, 2) if row.calls else None for row in rows],
            "Engine": [row.engine for row in rows],
            "Precision": [row.precision or "" for row in rows],
            "Known by": [row.evidence for row in rows],
            "Conversion": [row.conversion or "" for row in rows],
            "Needs, MB": [
                round(f.needed_bytes / 1e6, 3) if f and f.needed_bytes is not None else None
                for f in floors
            ],
            "GB/s": [round(f.bandwidth / 1e9, 1) if f and f.bandwidth else None for f in floors],
            "Floor, us": [
                round(f.floor_us, 2) if f and f.floor_us is not None else None for f in floors
            ],
            "Above floor, us a step": [
                round(f.left_us, 1) if f and f.left_us is not None else None for f in floors
            ],
        }
    )


def _roofline(prepared: Prepared, facts: Sequence[KernelFacts]) -> None:
    st.subheader("Roofline", anchor="roofline")
    report = prepared.report
    found = report.roofline
    if found is None or not found.phases:
        widgets.lines(
            "Nothing tells what kernels need: the recording has no live model's layers, or its "
            "GPU is not known.",
            *(found.notes if found else ()),
        )
        return
    phases = {phase.phase: phase for phase in found.phases}
    names = list(phases)
    phase = phases[names[widgets.choice("Steps", names, "phase", values=names)]]
    known = with_need(phase.rows)
    if not known:
        widgets.lines("Of no kernel is known how many bytes it needs.", *found.notes)
        return
    rest = phase.kernels_us - phase.placed_us
    widgets.lines(
        f"{counted(len(known), 'kernel')} with known bytes; the others take "
        f"{microseconds(rest)} of a step's {microseconds(phase.kernels_us)}. The area of a "
        "point is its time in a step. Choose a point to see all about its kernel.",
    )
    places = {entry.row.name: entry.place for entry in facts}
    figure = bytes_and_time(known, found.ceilings, places)
    widgets.figure(figure, _BYTES, selection=("points",))
    if with_intensity(known):
        precisions = {
            (row.name, row.component):
            "fp32" if row.engine == "cuda-core" else row.precision or ""
            for row in report.kernels
        }  # fmt: skip
        figure = intensity(known, found.ceilings, precisions, places)
        widgets.figure(figure, _INTENSITY, selection=("points",))
    else:
        widgets.lines("Of no kernel are both its bytes and its operations known.")
    widgets.lines(*roofline_section.floors(report).intro)
    with st.expander("The same in numbers"):
        widgets.section(roofline_section.kernels(report))

"""The page of kernels: a table to search, the roofline, and all about one kernel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from spark_prof.analyzers.classify.classifier import short_name
from spark_prof.analyzers.classify.code_rows import CodeRow
from spark_prof.analyzers.finding import Finding
from spark_prof.analyzers.step_time import StepKind, kinds_of
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
from spark_prof.dashboards.sections.run_section import on_cpu
from spark_prof.dashboards.units import clean, count, counted, microseconds, share, spans
from spark_prof.datasets.prepared import Prepared
from spark_prof.explorer import links, listing, state, widgets
from spark_prof.explorer.state import Sources
from spark_prof.extras import install_command
from spark_prof.traces.bundle import META_FILE
from spark_prof.traces.compressed import is_zip_with
from spark_prof.traces.resolve import is_bundle

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
    component = facts[0].row.component if facts else "other"
    role = facts[0].role if facts else ""
    title = f"{short_name(full)} ({role})" if role else short_name(full)
    st.subheader(widgets.plain(title), anchor=False)
    _ways(prepared, name)
    if short_name(full) != full:
        with st.expander("Its full name"):
            widgets.lines(full)
    reasons = list(dict.fromkeys(one_kernel_section.reason(entry.row) for entry in facts))
    if prepared.kernels.copies[name]:
        reasons = ["A copy or a memset: no sum of kernels contains it."]
    widgets.lines(*reasons, *about_cells.placed_by(prepared.report))
    _findings(prepared, full, role)
    beside = None
    for entry in facts:
        of = f" for {entry.row.component}" * (len(facts) > 1)
        pair = one_kernel_section.facts(entry), one_kernel_section.floor(entry.floor)
        columns = st.columns(2)
        for column, section in zip(columns, pair, strict=True):
            with column:
                _section(replace(section, title=section.title + of), entry.row.component)
        beside = columns[1] if len(pair[1].rows) == 1 else None  # there is room below a short one
    below = (
        one_kernel_section.streamed(prepared.report, component),
        one_kernel_section.counters(prepared.report, full),
    )
    code, listed = _code(prepared, full, below, beside)
    calls = calls_of(prepared.kernels, prepared.steps, name)
    if len(calls):
        _section(one_kernel_section.launches(launches(calls, prepared.kernels), full, component,
                                       prepared.report))  # fmt: skip
        _figures(prepared, calls, component)
    else:
        widgets.lines("No analyzed step calls it.")
    if code is not None:  # nvdisasm takes a second: the rest of the page is there meanwhile
        with listed:
            _listing(prepared, code)


def _ways(prepared: Prepared, name: int) -> None:
    """Draws the ways from a kernel to its place in time and to all kernels."""
    with st.container(horizontal=True, vertical_alignment="center"):
        # A link to the page that is open would leave the address as it is.
        st.button("All kernels", key="all-kernels", on_click=_leave)
        if not prepared.timed:
            return
        kernels, step = prepared.kernels, links.ranked_step(prepared.steps, "median")
        calls = np.flatnonzero((kernels.name == name) & (kernels.step == step))
        if step is not None and len(calls):
            text = f"In the Timeline: its {counted(len(calls), 'call')} in step {step}"
            links.link("timeline", text, call=int(calls[0]))
        else:
            links.link("timeline", "In the Timeline: its first call", kernel=name)


def _leave() -> None:
    state.keep(kernel=None, component=None, code=None, lines=None, line=None)


def _code(
    prepared: Prepared, full: str, below: Sequence[Section], beside: DeltaGenerator | None
) -> tuple[CodeRow | None, DeltaGenerator]:
    """Draws what the machine code is made of, beside the place of its listing.

    Args:
        below: sections that stand below the counts.
        beside: where all of it goes if no code is known; None for two columns of its own.

    Returns:
        The code that is chosen, None where none is known, and the place of its listing.
    """
    rows = [row for row in prepared.report.machine_code if row.name == full]
    if not rows:
        left, right = (beside, beside) if beside else st.columns(2)
        with left:
            for section in below:
                _section(section)
        copy = prepared.kernels.copies[prepared.kernels.names.index(full)]
        if not copy and not on_cpu(prepared.report):
            with right if any(section.rows for section in below) else left:
                st.subheader("Machine code", anchor=False)
                widgets.lines(_NO_CODE)
        return None, st.container()
    left, right = st.columns([2, 3])
    with left:
        names = tuple(row.cubin for row in rows)
        labels = [f"{row.cubin}, {row.target}, {counted(row.instructions, 'instruction')}"
                  for row in rows]  # fmt: skip
        chosen = 0
        if len(rows) > 1:
            chosen = widgets.choice(
                "It ran one of these", labels, "code", values=names, forget=["line"]
            )
        _section(one_kernel_section.code(rows[chosen]), rows[chosen].cubin)
    listed = right.container()
    # Without a listing there is room beside the counts.
    with left if listing.can_list(prepared.source, rows[chosen].cubin) else right:
        for section in below:
            _section(section)
    return rows[chosen], listed


def _listing(prepared: Prepared, code: CodeRow) -> None:
    st.subheader("Its instructions", anchor=False)
    fault = "only a bundle keeps machine code"
    source = Path(prepared.source)
    if is_bundle(source) or is_zip_with(source, META_FILE):
        fault = listing.draw(prepared.source, code.cubin, code.function)
    if fault:
        widgets.lines(f"No listing: {fault}. {_NO_LISTING}")


_NO_CODE = (
    "The recording holds none of it. spark-prof record keeps it with the backend cupti, and "
    f"nvdisasm reads it: {install_command('sass')}."
)
_NO_LISTING = (
    "It needs the bundle's folder cubins, which spark-prof record fills, and nvdisasm: "
    f"{install_command('sass')}."
)


def _section(section: Section, key: str = "") -> None:
    if section.rows:
        st.subheader(widgets.plain(section.title), anchor=False)
        widgets.lines(*section.intro)
        widgets.table(widgets.frame_of(section), f"kernel-{section.id}{'-' * bool(key)}{key}")


def _findings(prepared: Prepared, full: str, role: str) -> None:
    of_role, of_other_roles = one_kernel_section.named_by(prepared.report.findings, full, role)
    if not of_role:
        widgets.lines("No finding names it.")
        return
    st.subheader("Findings that name it", anchor=False)
    _cards(of_role)
    if of_other_roles:
        with st.expander(f"{counted(len(of_other_roles), 'finding')} on other roles of this name"):
            _cards(of_other_roles)


def _cards(findings: Sequence[Finding]) -> None:
    for finding in findings:
        with st.container(border=True):
            if finding.ms_per_token is not None:
                widgets.lines(f"At most {microseconds(1000 * finding.ms_per_token)} a token")
            widgets.lines(finding.text, finding.fix)


def _figures(prepared: Prepared, calls: KernelCalls, component: str) -> None:
    histogram = durations(calls)
    if histogram is None:
        return
    if not prepared.timed:
        widgets.lines("The recording has sums only: nothing tells how long single calls took.")
        return
    uses = layers(calls)
    left, right = st.columns(2)
    with left:
        widgets.figure(call_histogram(histogram, component), "kernel-durations")
        widgets.lines(
            f"{counted(calls.all, 'call')}: median {microseconds(histogram.median_us)}, p90 "
            f"{microseconds(histogram.p90_us)}, p99 {microseconds(histogram.p99_us)}, from "
            f"{microseconds(histogram.least_us)} to {microseconds(histogram.most_us)}."
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
_FILTERS = ("text", "phase", "engine", "precision")
"""Of the table, beside the component, which the address of a kernel names as well."""


def show(sources: Sources) -> None:
    prepared = sources.prepared
    name = state.chosen_number("kernel", -1, 0, len(prepared.kernels.names) - 1)
    kind = _kind(prepared.steps)
    facts = _facts(prepared, kind)
    if name >= 0:
        mine = [entry for entry in facts if entry.place == name]
        if not mine:  # no step of this kind runs it
            every = _facts(prepared, _kinds(prepared.steps)[-1])
            mine = [entry for entry in every if entry.place == name]
        component = state.chosen("component")
        kernel_detail(
            prepared, name, sorted(mine, key=lambda entry: entry.row.component != component)
        )
        return
    kernels = _matches(facts)
    _follow(kernels)
    _search(prepared, facts)
    _table(prepared, kernels, facts)
    _roofline(prepared, kind, facts)


def _kinds(steps: pd.DataFrame) -> tuple[StepKind, ...]:
    """Phases to choose from, decode first; the last one has all that run in any step."""
    if steps.empty:
        return (StepKind("all", None, 0),)
    return tuple(kind for kind in kinds_of(steps) if kind.batch is None)


def _kind(steps: pd.DataFrame) -> StepKind:
    """The steps that the address names."""
    kinds = _kinds(steps)
    words = tuple(kind.phase for kind in kinds)
    return kinds[words.index(state.chosen("phase", words[0], words))]


def _facts(prepared: Prepared, kind: StepKind) -> tuple[KernelFacts, ...]:
    return facts_of(prepared.report, prepared.kernels.names, kind, prepared.sums)


def _filters() -> dict[str, str]:
    """What the table is searched for, as the address says it."""
    return {word: state.chosen(word) for word in _FILTERS if state.chosen(word)}


def _follow(kernels: Sequence[KernelFacts]) -> None:
    """Goes to the kernel that was chosen last, before anything is drawn."""
    rows = [kernels[row] for row in links.chosen_rows(_TABLE)[:1] if row < len(kernels)]
    chosen = [(kernel.place, kernel.row.component) for kernel in rows]
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


def _matches(facts: Sequence[KernelFacts]) -> tuple[KernelFacts, ...]:
    """The kernels that the address asks for."""
    chosen = [state.chosen(name, "", words) for name, words in _values(facts).items()]
    return search(facts, state.chosen("text"), *chosen)


def _search(prepared: Prepared, facts: Sequence[KernelFacts]) -> None:
    """Draws what can be looked for."""
    columns = st.columns([2, 1, 1, 1, 1])
    with columns[0]:
        _text()
    with columns[1]:
        kinds = _kinds(prepared.steps)
        labels = [f"{kind.phase} ({count(kind.steps)})" for kind in kinds]
        widgets.choice("Steps", labels, "phase", values=[kind.phase for kind in kinds])
    for column, (name, words) in zip(columns[2:], _values(facts).items(), strict=True):
        with column:
            widgets.choice(name.capitalize(), ["any", *words[1:]], name, values=words)


def _text() -> None:
    st.session_state["kernels-text"] = state.chosen("text")

    def changed() -> None:
        state.keep(text=st.session_state["kernels-text"] or None)

    st.text_input("Search", key="kernels-text", on_change=changed, max_chars=200,
                  placeholder="words of the name, id, component, role or conversion")  # fmt: skip


def _table(
    prepared: Prepared, kernels: Sequence[KernelFacts], facts: Sequence[KernelFacts]
) -> None:
    us = sum(entry.us for entry in kernels)
    part = sum(entry.share for entry in kernels)
    phase = next((f"{entry.phase} " for entry in facts if entry.phase != "all"), "")
    several = phase == "decode " and len(prepared.report.steps.batches) > 1
    sizes = " of all batch sizes" if several else ""  # the other tables are of one
    widgets.lines(
        f"{count(len(kernels))} of {counted(len(facts), 'kernel')}: {microseconds(us)} of a "
        f"typical {phase}step{sizes}, {share(part)} of its kernel time. A click on a row, or "
        "Enter, opens it."
    )
    frame = _frame(kernels)
    full, digits = [entry.row.name for entry in kernels], _digits(kernels)
    widgets.table(frame, _TABLE, selectable=True, digits=digits, widths=_WIDTHS, full=full)


_WIDTHS = {
    "Role": 100, "Component": 90, "Kernel": 215, "us a step": 80, "Share, %": 70, "Calls": 55,
    "us a call": 75, "Engine": 90, "Precision": 72, "Evidence": 72, "Reads": 200, "Module": 200,
}  # fmt: skip
"""Pixels: up to the evidence all is in sight on a screen that is 1440 wide."""


def _frame(kernels: Sequence[KernelFacts]) -> pd.DataFrame:
    rows = [entry.row for entry in kernels]
    floors = [entry.floor for entry in kernels]
    frame = pd.DataFrame(
        {
            "Role": [clean(entry.role) for entry in kernels],
            "Component": [row.component for row in rows],
            "Kernel": [clean(short_name(row.name)) for row in rows],
            "us a step": [entry.us for entry in kernels],
            "Share, %": [100 * entry.share for entry in kernels],
            "Calls": [entry.calls for entry in kernels],
            "us a call": [entry.us / entry.calls if entry.calls else None for entry in kernels],
            "Engine": [row.engine for row in rows],
            "Precision": [row.precision or "" for row in rows],
            "Evidence": [row.evidence for row in rows],
            "Lower bound, us": [f.floor_us if f else None for f in floors],
            "Above bound, us a step": [f.left_us if f else None for f in floors],
            "GB/s": [f.bandwidth / 1e9 if f and f.bandwidth else None for f in floors],
            "Needs, MB": [
                f.needed_bytes / 1e6 if f and f.needed_bytes is not None else None for f in floors
            ],
            "Reads": [clean(f.what) if f else "" for f in floors],
            "Conversion": [row.conversion or "" for row in rows],
            "Module": [clean(", ".join(row.roles)) for row in rows],
            "All steps, ms": [row.us / 1e3 for row in rows],
        }
    )
    numbers = list(_digits(kernels))
    return frame.assign(**frame[numbers].astype(float).round(3))


def _digits(kernels: Sequence[KernelFacts]) -> dict[str, int]:
    """Digits behind the point of each column of numbers."""
    # Weights of steps add up to one but for rounding.
    whole = all(abs(entry.calls - round(entry.calls)) < 1e-6 for entry in kernels if entry.calls)
    digits = {"us a step": 1, "Share, %": 1, "Calls": 0 if whole else 2, "us a call": 2}
    floors = {"Lower bound, us": 2, "Above bound, us a step": 1, "GB/s": 0, "Needs, MB": 3}
    return digits | floors | {"All steps, ms": 2}


def _roofline(prepared: Prepared, kind: StepKind, facts: Sequence[KernelFacts]) -> None:
    st.subheader("Roofline", anchor="roofline")
    report = prepared.report
    roofline = report.roofline
    if roofline is None or not roofline.phases:
        widgets.lines(
            "Nothing tells what kernels need: the recording has no live model's layers, or its "
            "GPU is not known.",
            *(roofline.notes if roofline else ()),
        )
        return
    phase = next((p for p in roofline.phases if p.phase == kind.phase), roofline.phases[0])
    rows_with_need = with_need(phase.rows)
    if not rows_with_need:
        widgets.lines("Of no kernel is known how many bytes it needs.", *roofline.notes)
        return
    rest = phase.kernels_us - phase.placed_us
    widgets.lines(
        f"{counted(len(rows_with_need), 'kernel')} with known bytes; the others take "
        f"{microseconds(rest)} of a {phase.phase} step's {microseconds(phase.kernels_us)}. The "
        "area of a point is its time in a step. Choose a point to see all about its kernel.",
    )
    places = {entry.row.name: entry.place for entry in facts}
    figure = bytes_and_time(rows_with_need, roofline.ceilings, places)
    widgets.figure(figure, _BYTES, selection=("points",))
    if with_intensity(rows_with_need):
        precisions = {
            (row.name, row.component):
            "fp32" if row.engine == "cuda-core" else row.precision or ""
            for row in report.kernels
        }  # fmt: skip
        figure = intensity(rows_with_need, roofline.ceilings, precisions, places)
        widgets.figure(figure, _INTENSITY, selection=("points",))
    else:
        widgets.lines("Of no kernel are both its bytes and its operations known.")
    widgets.lines(*roofline_section.floors(report).intro)
    rows = roofline_section.kernels(report)
    widgets.folded("roofline", "The same in numbers", lambda: widgets.section(rows))

"""Steps one by one: over time, against what they work on, and beside what clients saw."""

from __future__ import annotations

from dataclasses import replace

import streamlit as st

from spark_prof.analyzers.views.step_series import StepSeries, batch_times, context_fits, steps_of
from spark_prof.dashboards import chart_steps
from spark_prof.dashboards.sections import (
    client_section,
    context_section,
    prefill_section,
    request_section,
    speculation_section,
    time_section,
)
from spark_prof.dashboards.sections.client_section import clients_beside_steps
from spark_prof.datasets.prepared import clients_beside
from spark_prof.explorer import links, state, widgets
from spark_prof.explorer.state import Sources

_FIGURES = _IN_ORDER, _BY_CONTEXT, _BY_PROMPT = (
    "steps-in-order", "steps-by-context", "steps-by-prompt",
)  # fmt: skip
"""A click on a point of these leads to its step."""

_LARGEST_STEP = 1 << 31
_ENOUGH = 8  # steps below which a distribution says nothing


def show(sources: Sources) -> None:
    prepared = sources.prepared
    if not prepared.timed or prepared.steps.empty:
        widgets.lines("The source has sums of kernels: nothing tells when a step ran.")
        return
    if not prepared.report.run.tells_steps:
        widgets.section(time_section.accounting(prepared.report))
        widgets.lines("Nothing tells the steps of this recording.")
        return
    for name in _FIGURES:
        for step in links.chosen_points(name):
            links.go("timeline", step=int(step))
    steps = steps_of(prepared.steps)
    widgets.section(time_section.steps(prepared.report))
    widgets.section(request_section.requests(prepared.report))
    _in_order(steps)
    widgets.section(time_section.slowest(steps))
    _against_work(steps)
    for part in (
        *speculation_section.sections(prepared.report),
        *context_section.sections(prepared.report),
        *prefill_section.sections(prepared.report),
    ):
        widgets.section(part)
    if len(steps) >= _ENOUGH:
        widgets.figure(chart_steps.times_spread(steps), "spread-of-steps")
    _clients(sources)
    widgets.section(time_section.accounting(prepared.report))


def _in_order(steps: StepSeries) -> None:
    chosen = state.chosen_number("step", -1, 0, _LARGEST_STEP)
    widgets.lines("Click a step to see it in the Timeline.")
    figure = chart_steps.times_in_order(steps, chosen if chosen >= 0 else None)
    widgets.figure(figure, _IN_ORDER, selection=("points",))


def _against_work(steps: StepSeries) -> None:
    sizes = batch_times(steps)
    if len(sizes) > 1:
        widgets.figure(chart_steps.times_against_batch(sizes), "steps-by-batch")
        widgets.section(time_section.batches(sizes))
    fits = context_fits(steps)
    if any(fit.longest > fit.shortest for fit in fits):
        figure = chart_steps.times_against_context(steps, fits)
        widgets.figure(figure, _BY_CONTEXT, selection=("points",))
    widgets.section(time_section.contexts(fits))
    if (steps.prompt_tokens > 0).sum() > 2:
        figure = chart_steps.times_against_prompt(steps)
        widgets.figure(figure, _BY_PROMPT, selection=("points",))


def _clients(sources: Sources) -> None:
    clients = clients_beside(sources.prepared, sources.clients)
    if not clients:
        st.subheader("What clients saw", anchor="clients")
        widgets.lines(
            "No load generator's result is known. With one among the sources, as vllm bench "
            "serve --save-result writes it, the client's times stand beside the steps."
        )
        return
    if any(row.comparisons for row in clients):
        widgets.figure(clients_beside_steps(clients), "clients")
    widgets.section(client_section.agreement(replace(sources.prepared.report, clients=clients)))
    widgets.section(client_section.runs(clients))

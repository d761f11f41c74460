"""Sections about single steps: batch sizes, what context costs, and the slow ones."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from spark_prof.analyzers.views.step_series import BatchTimes, ContextFit, Steps
from spark_prof.dashboards.formats import MISSING, count, counted, microseconds, rate
from spark_prof.dashboards.section import Column, Section
from spark_prof.vocabulary import PHASES

_MOST_SLOW = 20


def batches(times: Sequence[BatchTimes]) -> Section:
    """Sets decode steps of different sizes beside each other."""
    rows = tuple(
        (
            count(row.requests),
            count(row.steps),
            microseconds(row.median_us),
            f"{microseconds(row.p10_us)} to {microseconds(row.p90_us)}",
            rate(row.tokens_per_s),
        )
        for row in times
    )
    columns = (
        Column("Requests", "number"),
        Column("Steps", "number"),
        Column("Median step", "number"),
        Column("10 to 90 % of the steps", "number"),
        Column("Steps x requests a second", "number"),
    )
    return Section("batch-times", "Decode steps by batch size", columns, rows)


def contexts(fits: Sequence[ContextFit]) -> Section:
    """Says how much longer a step takes with more context, or why that cannot be told."""
    rows = tuple(
        (
            count(fit.requests),
            count(fit.steps),
            f"{fit.shortest:,.0f} to {fit.longest:,.0f}",
            microseconds(fit.at_shortest_us),
            MISSING if fit.slope_us is None else microseconds(fit.slope_us),
            MISSING if fit.within_us is None else f"± {microseconds(fit.within_us)}",
            f"Not told: {fit.why_not}." if fit.why_not else "",
        )
        for fit in fits
    )
    columns = (
        Column("Requests", "number"),
        Column("Steps", "number"),
        Column("Tokens of context", "number"),
        Column("Step at the shortest", "number"),
        Column("For 1,000 tokens more", "number"),
        Column("95 %", "number"),
        Column("", "prose"),
    )
    intro = (
        "A line through the steps of each batch size, slow steps left out. Context is that of a "
        "mean request; a line says nothing beyond the contexts that were recorded.",
    )
    return Section("context-fits", "What context costs", columns, rows, intro)


def slowest(steps: Steps) -> Section:
    """Lists slow steps, the longest first."""
    places = np.flatnonzero(steps.slow)
    places = places[np.argsort(-steps.us[places], kind="stable")]
    rows = tuple(
        (
            count(int(steps.step[place])),
            PHASES[steps.phase[place]],
            microseconds(steps.us[place]),
            count(int(steps.requests[place])),
            count(int(steps.prompt_tokens[place])) if steps.prompt_tokens[place] else MISSING,
            f"{steps.begin_s[place]:,.3f} s",
        )
        for place in places[:_MOST_SLOW].tolist()
    )
    columns = (
        Column("Step", "number"),
        Column("Phase"),
        Column("Took", "number"),
        Column("Requests", "number"),
        Column("Prompt tokens", "number"),
        Column("Began after", "number"),
    )
    intro = (
        f"{counted(len(places), 'step')} took at least 1.5 times the median of the steps of the "
        "same phase, batch size and prompt.",
    )
    return Section("slow-steps", "Slow steps", columns, rows, intro)

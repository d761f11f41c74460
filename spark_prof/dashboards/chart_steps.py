"""Figures of steps: over time, against batch size, context and prompt, and how they spread."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
from plotly.colors import sample_colorscale

from spark_prof.analyzers.views.step_series import BatchTimes, ContextFit, StepSeries, thinned
from spark_prof.arrays import Floats, Int64s
from spark_prof.dashboards.charts import (
    NEUTRAL,
    PHASE_COLORS,
    TEXT,
    Plot,
    logarithmic_time_ticks,
    new_figure,
    time_ticks,
    whiskers,
)
from spark_prof.dashboards.units import counted, microseconds
from spark_prof.vocabulary import PHASES

MOST_MARKS = 1000
"""Drawn points of a figure; of more the lowest and the highest of each stretch are kept."""
_BINS = 60
_NARROW = 0.02
_ONE_BIN = np.array([-1.0, 1.0])
"""Edges of a single bar around steps that take the same, in units of what is narrow."""
_HEIGHT = 340

_SYMBOLS = {"prefill": "square", "decode": "circle", "mixed": "diamond", "unknown": "x"}
_SLOW = {"color": "rgba(0,0,0,0)", "size": 13, "line": {"width": 2, "color": "#D55E00"}}

Places = Int64s


def times_in_order(steps: StepSeries, chosen: int | None = None) -> Plot:
    """Draws each step's length over the time at which it began; slow steps are ringed.

    Every mark has the step's number as customdata, as in all figures of single steps here.
    """
    drawn = thinned(steps.begin_s, steps.us, MOST_MARKS)
    title = f"Steps in the order in which they ran{_left_out(drawn, steps)}"
    figure = _figure(title, steps.us)
    for number, phase in enumerate(PHASES):
        _points(figure, steps, drawn[steps.phase[drawn] == number], steps.begin_s, phase)
    ringed = drawn[steps.slow[drawn]]
    if len(ringed):
        _points(figure, steps, ringed, steps.begin_s, "", name="slow", marker=_SLOW)
    if chosen is not None and len(place := np.flatnonzero(steps.step == chosen)):
        figure.add_vline(x=float(steps.begin_s[place[0]]), line={"color": TEXT, "dash": "dot"})
    figure.update_xaxes(title={"text": "seconds since the first step"}, ticksuffix=" s")
    return figure


def times_against_context(steps: StepSeries, fits: Sequence[ContextFit]) -> Plot:
    """Draws decode steps over the context of a mean request, with a line where one is known."""
    decode_steps = steps.of("decode")
    decode_steps = decode_steps[steps.context[decode_steps] >= 0]
    room = MOST_MARKS // max(len(fits), 1)
    shares = [decode_steps[steps.requests[decode_steps] == fit.requests] for fit in fits]
    drawn = [mine[thinned(steps.context[mine], steps.us[mine], room)] for mine in shares]
    drawn_steps = np.concatenate(drawn) if drawn else decode_steps[:0]
    figure = _figure("Decode steps against tokens in the KV cache", steps.us[drawn_steps])
    for fit, mine, color in zip(fits, drawn, _scale(len(fits)), strict=True):
        name = counted(fit.requests, "request")
        marker = {"color": color, "size": 6, "line": {"width": 0.5, "color": TEXT}}
        _points(figure, steps, mine, steps.context, "decode", name=name, marker=marker)
        if fit.slope_us is not None:
            ends = [fit.shortest, fit.longest]
            figure.add_scatter(
                x=ends, y=[fit.us_at(end) for end in ends], mode="lines", showlegend=False,
                line={"color": color, "width": 3}, hoverinfo="skip",
            )  # fmt: skip
    figure.update_xaxes(title={"text": "tokens of context of a mean request"})
    return figure


def times_against_batch(times: Sequence[BatchTimes]) -> Plot:
    """Draws the median decode step over its requests, with the 10th and 90th percentile."""
    medians, high = [row.median_us for row in times], [row.p90_us for row in times]
    figure = _figure("Decode steps against batch size", np.array(high))
    figure.update_layout(showlegend=False)
    figure.add_scatter(
        x=[row.requests for row in times],
        y=medians,
        error_y=whiskers(medians, [row.p10_us for row in times], high) | {"color": NEUTRAL},
        mode="lines+markers",
        line={"color": PHASE_COLORS["decode"]},
        marker={"size": 8},
        text=[
            f"{counted(row.requests, 'request')}: {microseconds(row.median_us)}, "
            f"{row.tokens_per_s:,.0f} tokens/s, {counted(row.steps, 'step')}"
            for row in times
        ],
        hovertemplate="%{text}<extra></extra>",
    )
    figure.update_xaxes(title={"text": "requests that decode in a step"})
    if len(times) < 8:
        figure.update_xaxes(tickvals=[row.requests for row in times])
    return figure


def times_against_prompt(steps: StepSeries) -> Plot:
    """Draws steps that read prompts over the tokens that they read."""
    prompt_steps = np.flatnonzero(steps.prompt_tokens > 0)
    prompt_steps = prompt_steps[
        thinned(steps.prompt_tokens[prompt_steps], steps.us[prompt_steps], MOST_MARKS)
    ]
    figure = _figure("Steps that read prompts", steps.us[prompt_steps])
    for number, phase in enumerate(PHASES):
        _points(
            figure,
            steps,
            prompt_steps[steps.phase[prompt_steps] == number],
            steps.prompt_tokens,
            phase,
        )
    figure.update_xaxes(title={"text": "prompt tokens in a step"}, rangemode="tozero")
    return figure


def times_spread(steps: StepSeries) -> Plot:
    """Draws how many steps of each phase took how long; bars are equally wide in logarithms."""
    title = "How long steps take"
    figure = new_figure(title, _HEIGHT, legended=True, barmode="stack", bargap=0.05)
    logarithm = np.log10(np.maximum(steps.us, 1e-3))
    low, high = float(logarithm.min(initial=9.0)), float(logarithm.max(initial=-3.0))
    edges = np.linspace(low, high, _BINS + 1) if high - low > _NARROW else low + _NARROW * _ONE_BIN
    for number, phase in enumerate(PHASES):
        phase_logarithms = logarithm[steps.phase == number]
        if not len(phase_logarithms):
            continue
        counts = np.histogram(phase_logarithms, edges)[0]
        figure.add_bar(
            x=(edges[:-1] + edges[1:]) / 2,
            y=counts,
            width=np.diff(edges),
            name=phase,
            marker={"color": PHASE_COLORS[phase], "line": {"width": 0}},
            text=[
                f"{microseconds(begin)} to {microseconds(end)}: {counted(size, f'{phase} step')}"
                for (begin, end), size in zip(pairwise(10**edges), counts.tolist(), strict=True)
            ],
            textposition="none",
            hovertemplate="%{text}<extra></extra>",
        )
    figure.update_xaxes(**logarithmic_time_ticks(float(edges[0]), float(edges[-1])))
    figure.update_yaxes(title={"text": "steps"})
    return figure


def _points(
    figure: Plot,
    steps: StepSeries,
    places: Places,
    along: npt.NDArray[Any],
    phase: str,
    *,
    name: str = "",
    marker: Mapping[str, Any] | None = None,
) -> None:
    """Adds marks for those steps, where there are any."""
    if not len(places):
        return
    usual = {"color": PHASE_COLORS.get(phase), "symbol": _SYMBOLS.get(phase), "size": 6}
    figure.add_scatter(
        x=along[places],
        y=steps.us[places],
        mode="markers",
        name=name or phase,
        marker=usual if marker is None else dict(marker),
        customdata=steps.step[places],
        text=[_about(steps, place) for place in places.tolist()],
        hovertemplate="%{text}<extra></extra>",
    )


def _about(steps: StepSeries, place: int) -> str:
    parts = [
        f"step {steps.step[place]:,}, {PHASES[steps.phase[place]]}",
        microseconds(steps.us[place]),
    ]
    if steps.requests[place]:
        parts.append(f"{counted(int(steps.requests[place]), 'request')} decode")
    if steps.prompt_tokens[place]:
        parts.append(counted(int(steps.prompt_tokens[place]), "prompt token"))
    if steps.context[place] > 0:
        parts.append(f"{steps.context[place]:,.0f} tokens of context")
    return "; ".join(parts)


def _figure(title: str, us: Floats) -> Plot:
    """A figure whose upright axis has room for these times."""
    figure = new_figure(title, _HEIGHT, legended=True, hovermode="closest")
    most = 1.08 * float(us.max(initial=1e-3))
    figure.update_yaxes(range=[0, most], **time_ticks(most))
    figure.update_xaxes(nticks=8)
    return figure


def _left_out(drawn: Places, steps: StepSeries) -> str:
    if len(drawn) == len(steps):
        return ""
    return f" ({len(drawn):,} of {len(steps):,}: of each stretch the shortest and the longest)"


def _scale(number: int) -> list[str]:
    """Colours from dark to light for values in order; neither end vanishes on its page."""
    if number < 2:
        return [PHASE_COLORS["decode"]] * number
    places = [0.25 + 0.65 * place / (number - 1) for place in range(number)]
    colors: list[str] = sample_colorscale("Cividis", places)
    return colors

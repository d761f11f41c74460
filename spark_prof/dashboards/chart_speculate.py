"""The figures of a result of `spark-prof speculate`."""

from __future__ import annotations

from collections.abc import Mapping

from spark_prof.dashboards.charts import NEUTRAL, Plot, label, new_figure, whiskers
from spark_prof.dashboards.units import microseconds
from spark_prof.speculate.best_k import Best
from spark_prof.speculate.speculate_result import SpeculateResult

_LINES = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00")
"""Okabe and Ito's colours."""
_MOST_LINES = 12


def speculate_figures(result: SpeculateResult) -> Mapping[str, Plot]:
    """The figures by the id of the section in which they stand."""
    bests = [best for best in result.bests if len(best.rows) > 1][:_MOST_LINES]
    if not bests:
        return {}
    judged = [best for best in bests if best.drafts is not None]
    figures = {"spec_costs": _steps(bests, result)}
    if judged:
        figures["spec_best"] = _speeds(judged, result)
    return figures


def _speeds(bests: list[Best], result: SpeculateResult) -> Plot:
    """Draws tokens a second over those without drafts, by the number of drafts."""
    figure = new_figure(
        "Tokens a second over those without drafts, by drafts a step", 340, legended=True
    )
    figure.add_hline(y=1, line={"color": NEUTRAL, "width": 1, "dash": "dot"})
    for number, best in enumerate(bests):
        rows = [(row.drafts, row.speed) for row in best.rows if row.speed]
        values = [speed.value for _, speed in rows]
        ends = whiskers(
            values,
            [speed.value if speed.low is None else speed.low for _, speed in rows],
            [speed.value if speed.high is None else speed.high for _, speed in rows],
        )
        color = _LINES[number % len(_LINES)]
        figure.add_scatter(
            mode="lines+markers",
            name=_name(best, result),
            x=[drafts for drafts, _ in rows],
            y=values,
            error_y=ends | {"color": color, "width": 4},
            line={"color": color},
            marker={
                "color": color,
                "size": [14 if drafts == best.drafts else 7 for drafts, _ in rows],
            },
            hovertemplate="%{x} drafts: %{y:.3f} x<extra></extra>",
        )
    figure.update_xaxes(title={"text": "drafts a step"}, dtick=1)
    figure.update_yaxes(ticksuffix=" x", nticks=6)
    return figure


def _steps(bests: list[Best], result: SpeculateResult) -> Plot:
    """Draws the time of a step by the number of drafts."""
    figure = new_figure("Time of a step, by drafts", 340, legended=True)
    for number, best in enumerate(bests):
        times = [row.step_us.value for row in best.rows]
        color = _LINES[number % len(_LINES)]
        figure.add_scatter(
            mode="lines+markers",
            name=_name(best, result),
            x=[row.drafts for row in best.rows],
            y=[us / 1e3 for us in times],
            text=[microseconds(us) for us in times],
            line={"color": color},
            hovertemplate="%{x} drafts: %{text}<extra></extra>",
        )
    figure.update_xaxes(title={"text": "drafts a step"}, dtick=1)
    figure.update_yaxes(ticksuffix=" ms", rangemode="tozero")
    return figure


def _name(best: Best, result: SpeculateResult) -> str:
    several = len({best.context for best in result.bests}) > 1
    context = f", context {best.context}" if several else ""
    return label(f"batch {best.requests}{context}")

"""The figure of what the report's figures stand on."""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from types import MappingProxyType

import plotly.graph_objects as go

from spark_prof.analyzers.model import Report
from spark_prof.dashboards.about_run import on_cpu
from spark_prof.dashboards.charts import set_style
from spark_prof.dashboards.colors import LINES, SHADES, TEXT
from spark_prof.dashboards.formats import share
from spark_prof.vocabulary import BASIS_CLASSES, EVIDENCE

_SEEN, _CONCLUDED, _GUESSED = (SHADES[1], ""), (SHADES[2], ""), (SHADES[2], "/")
_LOOKS: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "proven": _SEEN,
        "derived": _CONCLUDED,
        "guessed": _GUESSED,
        "counter": _SEEN,
        "sass": _CONCLUDED,
        "name": _GUESSED,
        "unknown": (LINES, ""),
    }
)
"""Colour and pattern: what was seen is dark, a guess is hatched, what nothing tells is pale."""
_INSIDE = 0.08
"""From which share on a word has room in its bar."""


def evidence_shares(report: Report) -> dict[str, dict[str, float]]:
    """Shares of the kernel time by how its owner, and by what tells its engine, is known."""
    total = sum(row.us for row in report.kernels)
    owner = {name: getattr(report.coverage, name) for name in BASIS_CLASSES if name != "unknown"}
    owner = {name: value if isfinite(value) else 0.0 for name, value in owner.items()}
    found = {"owner": owner | {"unknown": max(1 - sum(owner.values()), 0.0)}}
    if total and not on_cpu(report):
        known = [row for row in report.kernels if row.engine != "unknown"]
        sums = {
            name: sum(row.us for row in known if row.evidence == name) / total
            for name in EVIDENCE
            if name != "unknown"
        }
        found["engine"] = sums | {"unknown": max(1 - sum(sums.values()), 0.0)}
    return found


def evidence_bars(report: Report) -> go.Figure:
    """Draws these shares, one bar for each question."""
    shares = evidence_shares(report)
    figure = go.Figure()
    words = dict.fromkeys(word for parts in shares.values() for word in parts)
    for word in words:
        values = [parts.get(word, 0.0) for parts in shares.values()]
        figure.add_bar(
            orientation="h",
            name=word,
            y=list(shares),
            x=[100 * value for value in values],
            text=[f"{word} {share(value)}" if value >= _INSIDE else "" for value in values],
            textposition="inside",
            insidetextanchor="middle",
            textangle=0,
            constraintext="none",
            textfont={"color": TEXT if word == "unknown" else "#101418"},
            marker={
                "color": _LOOKS[word][0],
                "line": {"width": 0},
                "pattern": {"shape": _LOOKS[word][1], "size": 6, "solidity": 0.15},
            },
            hovertext=[f"{word}: {share(value)} of the time" for value in values],
            hovertemplate="%{y}, %{hovertext}<extra></extra>",
        )
    set_style(figure, "What tells where a kernel belongs and what it runs on", height=190)
    figure.update_layout(barmode="stack")
    figure.update_xaxes(range=[0, 100], ticksuffix=" %", nticks=6)
    figure.update_yaxes(type="category", autorange="reversed", showgrid=False)
    return figure

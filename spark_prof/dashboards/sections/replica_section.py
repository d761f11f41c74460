"""The load of data-parallel replicas, side by side."""

from __future__ import annotations

from spark_prof.analyzers.model import Report
from spark_prof.dashboards import cells
from spark_prof.dashboards.section import Section, table
from spark_prof.dashboards.units import figure


def replicas(report: Report) -> Section:
    """What each replica had to do; one that has much less was given fewer requests."""
    tokens = sum(row.output_tokens or 0 for row in report.replicas)
    columns = (
        cells.Text("Replica", lambda row: figure(row.replica, "d")),
        cells.Text("Rank", lambda row: figure(row.rank, "d")),
        cells.Count("Steps", "steps"),
        cells.Time("In steps", "busy_us"),
        cells.Count("Prompt tokens", "prompt_tokens"),
        cells.Count("Output tokens", "output_tokens"),
        cells.Share("Of the output", lambda row: _share(row.output_tokens, tokens)),
        cells.Text("Requests that decode", lambda row: figure(row.batch, ".1f")),
    )
    intro = (
        "Each replica gets requests of its own. Requests that decode: mean over the steps in "
        "which any does.",
    )
    return table("replicas", "Load of the replicas", report.replicas, columns, intro)


def _share(output: int | None, whole: int) -> float | None:
    return output / whole if whole and output is not None else None

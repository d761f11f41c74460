"""Sections about settings without effect, and about the graphs that decode steps find."""

from __future__ import annotations

from spark_prof.analyzers.fallbacks.audit_rows import Audit
from spark_prof.dashboards.formats import MISSING, clean, count, share, shorten
from spark_prof.dashboards.section import Column, Section

_LONGEST = 300
_LONGEST_NAME = 60


def settings(audit: Audit) -> Section:
    """Lists settings that were made and do nothing, or soon will not."""
    rows = tuple(
        (
            shorten(clean(row.name), _LONGEST_NAME),
            shorten(clean(row.value), _LONGEST_NAME) or MISSING,
            clean(row.status),
            shorten(clean(row.why), _LONGEST),
            shorten(clean(row.instead), _LONGEST) or MISSING,
        )
        for row in audit.settings
    )
    columns = (
        Column("Setting", "name"),
        Column("Value", "name"),
        Column("Status"),
        Column("Why", "prose"),
        Column("Instead", "prose"),
    )
    return Section("settings", "Settings without effect", columns, rows)


def batches(audit: Audit) -> Section:
    """Sets the sizes of decode steps beside the CUDA graphs that they are padded to."""
    rows = tuple(
        (
            count(row.tokens),
            count(row.steps),
            MISSING if row.graph is None else count(row.graph),
            MISSING if row.graph is None else share(1 - row.tokens / max(row.graph, 1)),
        )
        for row in audit.batches
        if audit.engine.graph_sizes
    )
    columns = (
        Column("Tokens of a step", "number"),
        Column("Steps", "number"),
        Column("Captured graph", "number"),
        Column("Padding", "number"),
    )
    return Section("graph-sizes", "Decode steps and their CUDA graphs", columns, rows)

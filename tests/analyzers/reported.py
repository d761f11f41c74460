"""Reports of bundles made by hand, which compute what a test asks them for and nothing else."""

from __future__ import annotations

from typing import Any

from spark_prof.analyzers.model import Report
from spark_prof.analyzers.summary import summary_of
from spark_prof.traces.bundle import Bundle


def reported(bundle: Bundle, rank: int | None = None, **more: Any) -> Report:
    """The report of a bundle that stays where it is."""
    return summary_of(bundle, rank, **more).report

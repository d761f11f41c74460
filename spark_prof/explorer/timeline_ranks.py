"""Other ranks of the recording as lanes of the time line, read when a user asks for them."""

from __future__ import annotations

import streamlit as st

from spark_prof.analyzers.model import Report
from spark_prof.analyzers.views.timeline import RankColumns
from spark_prof.datasets.prepared import Prepared
from spark_prof.explorer import cache, state, widgets

__all__ = ["choose_others"]

_KEY = "timeline-ranks"
_NAME = "ranks"
_MOST = 16


def choose_others(shown: Prepared) -> list[RankColumns]:
    """Draws the choice of other ranks where there are any, and reads the chosen ones."""
    others = [rank for rank in shown.ranks if rank != shown.rank]
    if not others:
        return []
    named = {int(text) for text in state.chosen(_NAME).split(",") if text.isdecimal()}
    st.session_state[_KEY] = [rank for rank in others if rank in named][:_MOST]

    def changed() -> None:
        state.keep(**{_NAME: ",".join(map(str, st.session_state[_KEY])) or None})

    chosen = st.multiselect(
        "Other ranks, each as a lane",
        others,
        key=_KEY,
        on_change=changed,
        format_func=lambda rank: f"rank {rank}",
        max_selections=_MOST,
    )
    found = []
    for rank in chosen:
        kernels = cache.read(shown.source, rank, f"rank {rank}").kernels
        found.append(RankColumns(rank, kernels, _ahead_ns(shown.report, rank, shown.rank)))
    if found and not _comparable(shown.report, [shown.rank, *chosen]):
        widgets.lines(["Nothing tells how far the clocks of these ranks are apart."])
    return found


def _ahead_ns(report: Report, rank: int, shown: int) -> int:
    """By how much the clock of a rank is ahead of the shown one's; 0 where nothing tells."""
    offsets = {row.rank: row.offset_us for row in report.collectives.clocks if not row.same_host}
    return round(((offsets.get(rank) or 0.0) - (offsets.get(shown) or 0.0)) * 1e3)


def _comparable(report: Report, ranks: list[int]) -> bool:
    unknown = {
        row.rank for row in report.collectives.clocks if not row.same_host and row.offset_us is None
    }
    return unknown.isdisjoint(ranks)

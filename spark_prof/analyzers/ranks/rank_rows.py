"""The time of each rank of a parallel run, as rows of a report."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from spark_prof.analyzers.attribution.placement import kernels_in_order
from spark_prof.analyzers.instants import with_own_starts
from spark_prof.analyzers.model import RankRow, ReplicaRow
from spark_prof.analyzers.rank_layout import layout_of
from spark_prof.analyzers.recorded_run import NOTHING, steps_by
from spark_prof.analyzers.step_accounting import step_times
from spark_prof.analyzers.windows import timed_windows
from spark_prof.traces.bundle import Bundle, table_file


def rank_row(
    bundle: Bundle, rank: int, steps: pd.DataFrame | None, share: Mapping[str, Any]
) -> RankRow:
    """The time of a rank's steps, and what of it was waiting for others.

    Args:
        steps: its steps with their times, where they are at hand; None reads them.
        share: of the row's fields, those that collectives tell.
    """
    if not bundle.meta.tables[table_file("steps", rank)]:
        return RankRow(rank, 0, 0.0, 0.0, 0.0)
    if steps is None:
        columns = ["start_ns", "end_ns", "stream", "kind", "step"]
        kernels = with_own_starts(kernels_in_order(bundle, rank, columns))
        windows = timed_windows(bundle, rank, kernels)
        if len(windows.left_out):
            kernels = kernels[~kernels["step"].isin(windows.left_out)]
        steps = step_times(windows.steps, kernels)
    step_us, kernels_us, gap_us = map(float, steps[["step_us", "kernels_us", "gap_us"]].sum())
    count = len(steps) if steps_by(bundle, rank) != NOTHING else 0
    return RankRow(rank, count, step_us, kernels_us, gap_us, **share)


_COUNTS = ("prefill_tokens", "decode_tokens", "decode_requests")


def replica_load(bundle: Bundle) -> tuple[ReplicaRow, ...]:
    """A row a replica, as its lowest recorded rank saw it; none where the run has but one."""
    layout = layout_of(bundle)
    ranks: dict[int, list[int]] = {}
    for team in layout.teams:
        ranks.setdefault(team.replica, []).extend(team.ranks)
    if len(ranks) < 2:
        return ()
    return tuple(_row(bundle, replica, min(members)) for replica, members in sorted(ranks.items()))


def _row(bundle: Bundle, replica: int, rank: int) -> ReplicaRow:
    steps = bundle.frame("steps", rank, ["phase", "start_ns", "end_ns", *_COUNTS])
    decoding = steps["decode_requests"] > 0
    output = None
    if f"engine-rank{replica}.parquet" in bundle.meta.tables:
        output = int(bundle.frame("engine", replica, ["output_tokens"])["output_tokens"].sum())
    requests = steps["decode_requests"][decoding]
    return ReplicaRow(
        replica=replica,
        rank=rank,
        steps=len(steps),
        prompt_tokens=int(steps["prefill_tokens"].sum()),
        output_tokens=output,
        batch=float(requests.mean()) if len(requests) else None,
        busy_us=float((steps["end_ns"] - steps["start_ns"]).sum()) / 1e3,
    )

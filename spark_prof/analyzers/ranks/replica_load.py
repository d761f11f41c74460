"""What each data-parallel replica of a run had to do.

Replicas of a dense model are engines of their own, those of a MoE model meet in its experts; both
get requests of their own, and nothing but the load balancer makes them alike.
"""

from __future__ import annotations

from spark_prof.analyzers.model import ReplicaRow
from spark_prof.analyzers.rank_layout import layout_of
from spark_prof.traces.bundle import Bundle

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

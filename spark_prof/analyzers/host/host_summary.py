"""What a recording with `--host` tells of the host: its code in gaps, its limits, its threads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pandas as pd

from spark_prof.analyzers.host.host_gaps import Gaps, host_code, stacks_of
from spark_prof.analyzers.host.host_rows import BusyThread, HostCode, HostLimits
from spark_prof.analyzers.lookup import mapping_in
from spark_prof.analyzers.rank_layout import layout_of
from spark_prof.rules import thresholds
from spark_prof.traces.bundle import Bundle

_SPINS = thresholds.SPINNING_SHARE.value
_MOST_THREADS = 16


def host_of(
    bundle: Bundle, rank: int, kernels: pd.DataFrame, steps: pd.DataFrame
) -> HostCode | None:
    """Which code held the GPU of a rank back; None where no stacks were sampled.

    Args:
        kernels: kernels and copies with `start_ns` and `end_ns`, by the clock of the steps.
        steps: the profiled ones, with `begin_ns` and `finish_ns` of each window.
    """
    process, engine = f"rank{rank}", engine_of(bundle, rank)
    samples = host_table(bundle, "stacks")
    stacks = stacks_of(samples, process, engine)
    if stacks.empty:
        return None
    code = host_code(stacks, Gaps.of(kernels, steps))
    return replace(code, limits=_limits(bundle, rank), busy=_busy(bundle, {process, engine}))


def host_table(bundle: Bundle, table: str) -> pd.DataFrame:
    """A table of what was seen from outside, of all hosts."""
    return pd.concat([bundle.frame(table, rank) for rank in bundle.ranks], ignore_index=True)


def engine_of(bundle: Bundle, rank: int) -> str:
    """The scheduler of a rank; of a single engine that one."""
    teams = (team for team in layout_of(bundle).teams if rank in team.ranks)
    replica = next((team.replica for team in teams), 0)
    return f"engine{replica}"


def _limits(bundle: Bundle, rank: int) -> HostLimits:
    rows = host_table(bundle, "host_figures")
    rows = rows[rows["process"].astype(str) == f"rank{rank}"]
    names = rows["name"].astype(str)
    figures = dict(zip(names, rows["value"].tolist(), strict=True))
    environment: Mapping[str, object] = mapping_in(bundle.facts(rank), "environment")
    periods = figures.get("periods")
    throttled = figures.get("throttled_ns")
    return HostLimits(
        cpus=figures.get("cpus"),
        quota=figures.get("cpu_quota"),
        throttled_share=figures.get("throttled_periods", 0.0) / periods if periods else None,
        throttled_us=None if throttled is None else throttled / 1e3,
        omp_threads=str(environment.get("OMP_NUM_THREADS", "")),
    )


def _busy(bundle: Bundle, processes: set[str]) -> tuple[BusyThread, ...]:
    rows = host_table(bundle, "threads")
    rows = rows[rows["process"].astype(str).isin(processes) & ~rows["python"].astype(bool)]
    rows = rows[rows["wall_ns"] > 0]
    columns = (rows[name].tolist() for name in ("process", "name", "thread", "cpu_ns", "wall_ns"))
    threads = [
        BusyThread(str(process), str(name), thread, used / whole)
        for process, name, thread, used, whole in zip(*columns, strict=True)
    ]
    spinning = [thread for thread in threads if thread.share >= _SPINS]
    return tuple(sorted(spinning, key=lambda thread: -thread.share)[:_MOST_THREADS])

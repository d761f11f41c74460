"""How many blocks of a kernel fit on a multiprocessor, and the launches of decode steps by shape.

The arithmetic of NVIDIA's occupancy calculator, cuda_occupancy.h of the CUDA toolkit. It takes the
multiprocessor's whole shared memory for given: the driver moves the border to the cache for a
kernel that needs it. Clusters are left out, as no trace says how large they are.

A model repeats a few hundred launches a million times. Of a large table only some row groups are
read, spread over the recording: how the time of a kernel is split among its shapes is taken from
them, and how much it is from all rows.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import pandas as pd

from spark_prof.analyzers.lookup import NameColumn, combined, positions
from spark_prof.analyzers.shapes.shape_rows import Occupancy
from spark_prof.rules.gpus import SmLimits
from spark_prof.traces.bundle import Bundle
from spark_prof.vocabulary import COPIES

_WARP = 32
_MOST_THREADS = 1024
_MOST_REGISTERS = 255


def occupancy_of(
    limits: SmLimits, threads: int, registers: int, shared_bytes: int
) -> Occupancy | None:
    """What one multiprocessor holds of a kernel; None where no GPU could have launched it so."""
    if not 0 < threads <= _MOST_THREADS or not 0 < registers <= _MOST_REGISTERS:
        return None
    if not 0 <= shared_bytes <= limits.block_shared_bytes:
        return None
    warps = -(-threads // _WARP)
    per_warp = _rounded_up(registers * _WARP, limits.register_granularity)
    # Each scheduler has its part of the registers, and a warp stays with its scheduler.
    fitting = limits.registers // limits.partitions // per_warp * limits.partitions
    allotted = _rounded_up(shared_bytes + limits.reserved_shared_bytes, limits.shared_granularity)
    allowed = {
        "registers": fitting // warps,
        "shared memory": limits.shared_bytes // allotted if allotted else limits.blocks,
        "threads": limits.warps // warps,
        "blocks": limits.blocks,
    }
    blocks = min(allowed.values())
    if not blocks:
        return None
    limiters = tuple(name for name, number in allowed.items() if number == blocks)
    return Occupancy(blocks, blocks * warps, blocks * warps / limits.warps, limiters)


def busy_share(blocks: int, places: int, multiprocessors: int) -> float:
    """Share of the GPU that has something to do while a grid runs."""
    if blocks <= places:
        # Blocks spread over the multiprocessors before two share one.
        return min(blocks, multiprocessors) / multiprocessors
    waves = blocks / places
    return waves / math.ceil(waves)


def _rounded_up(value: int, step: int) -> int:
    return -(-value // step) * step


SHAPE = ("grid", "block", "registers", "shared_bytes")
"""Columns of the `kernels` table that say how a kernel was launched."""

_ROWS = 1 << 18
"""Rows of the table that are looked at, and some more to make row groups whole."""


def counted_phase(steps: pd.DataFrame) -> str | None:
    """The phase whose steps are looked at: decode, or unknown where no step is known to decode."""
    return next((p for p in ("decode", "unknown") if (steps["phase"] == p).any()), None)


def launches_of(
    bundle: Bundle, rank: int, placed: pd.DataFrame, steps: pd.DataFrame, sums: pd.DataFrame
) -> tuple[pd.DataFrame, float]:
    """The launches of the steps of the counted phase, one row a name, component and shape.

    Args:
        placed: the rank's kernels in order of start: name, component, kind, step, start_ns, end_ns.
        steps: the analyzed steps indexed by step: phase and decode_tokens.

    Returns:
        name, component, grid, block, registers, shared_bytes, ns, calls and tokens: the mean number
        of tokens of the steps that launched it; empty without such steps. And the share of the
        table's rows that was looked at for it.
    """
    phase = counted_phase(steps)
    rows, place = bundle.spread(
        rank=rank, table="kernels", columns=["start_ns", *SHAPE], rows=_ROWS
    )
    start = placed["start_ns"].to_numpy()
    if len(rows) and not np.array_equal(rows["start_ns"].to_numpy(), start[place]):
        # The table is not in order of start, and the kernels were sorted: so must these be.
        rows = bundle.frame("kernels", rank, ["start_ns", *SHAPE])
        rows = rows.sort_values("start_ns", kind="stable", ignore_index=True)
        place = np.arange(len(rows))
    counted = steps[steps["phase"] == phase]
    kernels = placed.iloc[place] if len(place) < len(placed) else placed
    step = positions(counted.index.to_numpy(), kernels["step"].to_numpy())
    copies = NameColumn(kernels["kind"]).flags(lambda kind: kind in COPIES)
    mine = np.flatnonzero((step >= 0) & ~copies)
    found = pd.DataFrame(
        {
            "name": kernels["name"].array[mine],
            "component": kernels["component"].array[mine],
            **{name: rows[name].array[mine] for name in SHAPE},
        }
    )
    took = (kernels["end_ns"].to_numpy() - kernels["start_ns"].to_numpy())[mine]
    tokens = counted["decode_tokens"].to_numpy(np.float64)[step[mine]]
    looked_at = len(place) / max(len(placed), 1)
    return _exact(_added_up(found, took, tokens), sums[sums["phase"] == phase]), looked_at


def _added_up(
    found: pd.DataFrame, took: npt.NDArray[np.int64], tokens: npt.NDArray[np.float64]
) -> pd.DataFrame:
    """One row for each different row, with its time, calls and mean tokens."""
    code, first = combined(*(found[name] for name in found))
    count = len(first)
    calls = np.bincount(code, minlength=count)
    return found.iloc[first].assign(
        ns=np.bincount(code, weights=took, minlength=count),
        calls=calls,
        tokens=np.bincount(code, weights=tokens, minlength=count) / np.maximum(calls, 1),
    )


def _exact(looked_at: pd.DataFrame, sums: pd.DataFrame) -> pd.DataFrame:
    """The same with the time and calls that each kernel has over all rows."""
    keys = ["name", "component"]
    whole = sums.astype(dict.fromkeys(keys, str)).groupby(keys)[["ns", "calls"]].sum()
    found = looked_at.astype(dict.fromkeys(keys, str)).reset_index(drop=True)
    seen = found.groupby(keys)[["ns", "calls"]].transform("sum")
    known = whole.reindex(pd.MultiIndex.from_frame(found[keys])).reset_index(drop=True)
    for column in ("ns", "calls"):
        # A kernel that took no time at all has none to share.
        share = found[column] / seen[column].replace(0, 1)
        found[column] = share * known[column].fillna(0)
    return found.sort_values("ns", ascending=False, kind="stable", ignore_index=True)

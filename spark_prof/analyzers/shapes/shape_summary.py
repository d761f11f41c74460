"""Says of each launch shape of decode steps how it fills the GPU and its tiles.

How many blocks fit on a multiprocessor is the arithmetic of NVIDIA's occupancy calculator,
cuda_occupancy.h of the CUDA toolkit. It takes the multiprocessor's whole shared memory for given:
the driver moves the border to the cache for a kernel that needs it. Clusters are left out, as no
trace says how large they are.

A model repeats a few hundred launches a million times. Of a large table only some row groups are
read, spread over the recording: how the time of a kernel is split among its shapes is taken from
them, and how much it is from all rows.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from spark_prof.analyzers.attribution.placement import kernels_in_order
from spark_prof.analyzers.ceilings.checkpoint_ceilings import expected_experts
from spark_prof.analyzers.ceilings.config import Config
from spark_prof.analyzers.classify.classifier import is_gemm
from spark_prof.analyzers.counters.counter_batches import Counters
from spark_prof.analyzers.instants import recorded_starts, with_own_starts
from spark_prof.analyzers.lookup import copies_in, mapping_in, positions
from spark_prof.analyzers.recorded_run import device_of
from spark_prof.analyzers.shapes.shape_rows import SHAPE_COLUMNS, Occupancy, ShapeRow, Shapes, Tile
from spark_prof.analyzers.shapes.tiles import tile_of
from spark_prof.rules.gpus import SM_LIMITS, SmLimits, find_gpu
from spark_prof.traces.bundle import Bundle


def shapes_of(
    bundle: Bundle,
    rank: int,
    placed: pd.DataFrame,
    steps: pd.DataFrame,
    sums: pd.DataFrame,
    counters: Counters | None,
) -> Shapes | None:
    """The launch shapes of a rank's decode steps; None where no kernel tells its shape."""
    phase = counted_phase(steps)
    launches, looked_at = launches_of(bundle, rank, placed, steps, sums)
    launches = launches[launches["grid"].astype(str) != ""]
    if phase is None or launches.empty:
        return None
    facts = bundle.facts(rank)
    gpu, config = mapping_in(facts, "gpu"), Config(mapping_in(facts, "model_config"))
    name, capability = device_of(facts)
    sheet = find_gpu(name, capability)
    count = gpu.get("multiprocessors") or 0
    if not 0 < count < 1 << 16:  # a foreign trace may have any number there
        count = sheet.multiprocessors if sheet else None
    capability = capability or (sheet.compute_capability if sheet else "")
    limits = SM_LIMITS.get(capability)
    notes = []
    if count is None:
        notes.append(
            "Nothing tells how many multiprocessors the GPU has: no waves, and nothing about "
            "grids that are too small for it."
        )
    if limits is None:
        gpu_text = f"of compute capability {capability}" if capability else "of the GPU"
        notes.append(f"The limits of a multiprocessor {gpu_text} are not known: no occupancy.")
    if looked_at < 1:
        notes.append(
            f"How the time of a kernel is split among its shapes was taken from "
            f"{100 * looked_at:.1f} % of all launches, spread over the recording."
        )
    # Active warps, of the batch size that was sampled most.
    counted = counters.batches[0].rows if counters and counters.batches else ()
    achieved = {(row.name, row.component): row.warps_active for row in counted}
    whole = float(sums.loc[sums["phase"] == phase, "ns"].sum()) or 1.0
    rows = tuple(
        _row(launch, whole, count, limits, config, achieved)
        for launch in launches.itertuples(index=False)
    )
    return Shapes(int((steps["phase"] == phase).sum()), count, rows, tuple(notes))


def _row(
    launch: Any,
    whole: float,
    multiprocessors: int | None,
    limits: SmLimits | None,
    config: Config,
    achieved: Mapping[tuple[str, str], float | None],
) -> ShapeRow:
    blocks, threads = _product(launch.grid), _product(launch.block)
    occupancy: Occupancy | None = None
    if limits:
        occupancy = occupancy_of(limits, threads, int(launch.registers), int(launch.shared_bytes))
    waves = busy = None
    if multiprocessors and blocks:
        # Whatever a block needs: fewer blocks than multiprocessors leave some of them idle.
        if occupancy:
            places = multiprocessors * occupancy.blocks
            waves, busy = blocks / places, busy_share(blocks, places, multiprocessors)
        elif blocks < multiprocessors:
            busy = blocks / multiprocessors
    tile = tile_of(launch.name)
    used, expected = _rows_used(tile, launch.name, launch.component, float(launch.tokens), config)
    columns = launch._asdict()
    ns = columns.pop("ns")
    return ShapeRow(
        **columns,
        us=ns / 1e3,
        share=ns / whole,
        blocks=blocks,
        waves=waves,
        busy=busy,
        occupancy=occupancy,
        achieved=achieved.get((launch.name, launch.component)),
        tile=tile,
        rows_used=used,
        expected=expected,
    )


def _rows_used(
    tile: Tile | None, name: str, component: str, tokens: float, config: Config
) -> tuple[float | None, bool]:
    if tile is None or not tile.token_rows or tokens <= 0 or not is_gemm(name):
        return None, False
    routed = component == "experts"
    rows = rows_per_expert(config, tokens) if routed else tokens
    if rows is None:
        return None, False
    # The last of several tiles is the one that is not full.
    return rows / math.ceil(rows / tile.token_rows), routed and tokens > 1


def _product(triple: object) -> int:
    """The product of the three numbers of a grid or block; 0 where they are none."""
    try:
        sides = [int(side) for side in str(triple).split(",")]
    except ValueError:
        return 0
    return math.prod(sides) if len(sides) == 3 and all(0 < s < 1 << 32 for s in sides) else 0


def rows_per_expert(config: Config, tokens: float) -> float | None:
    """Mean tokens of an expert that gets any, where each token finds all experts equally likely.

    Exact for one token: each of its experts gets that one. None where the experts are not known.
    """
    among, chosen = config.experts, config.experts_per_token
    if not 0 < chosen <= among:
        return None
    tokens = max(tokens, 1.0)
    return tokens * chosen / expected_experts(among, chosen, tokens)


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


_ROWS = 1 << 18  # rows of the table that are looked at, and some more to make row groups whole


def counted_phase(steps: pd.DataFrame) -> str | None:
    """The phase whose steps are looked at: decode, or unknown where no step is known to decode."""
    return next((p for p in ("decode", "unknown") if (steps["phase"] == p).any()), None)


def launches_of(
    bundle: Bundle, rank: int, placed: pd.DataFrame, steps: pd.DataFrame, sums: pd.DataFrame
) -> tuple[pd.DataFrame, float]:
    """The launches of the steps of the counted phase, one row a name, component and shape.

    Returns:
        name, component, grid, block, registers, shared_bytes, ns, calls and tokens: the mean number
        of tokens of the steps that launched it. And the share of the table's rows that was looked
        at for it.
    """
    phase = counted_phase(steps)
    rows, place = bundle.spread(
        rank=rank, table="kernels", columns=["start_ns", *SHAPE_COLUMNS], rows=_ROWS
    )
    kernels = placed.iloc[place] if len(place) < len(placed) else placed
    if len(rows) and not np.array_equal(rows["start_ns"].to_numpy(), recorded_starts(kernels)):
        # The kernels are in another order than the table: so must these be.
        columns = ["start_ns", "end_ns", "stream", *SHAPE_COLUMNS]
        rows, kernels = with_own_starts(kernels_in_order(bundle, rank, columns)), placed
        place = np.arange(len(rows))
    counted = steps[steps["phase"] == phase]
    step = positions(counted.index.to_numpy(), kernels["step"].to_numpy())
    copies = copies_in(kernels)
    mine = np.flatnonzero((step >= 0) & ~copies)
    launches = pd.DataFrame(
        {
            "name": kernels["name"].array[mine],
            "component": kernels["component"].array[mine],
            **{name: rows[name].array[mine] for name in SHAPE_COLUMNS},
        }
    )
    took = (kernels["end_ns"].to_numpy() - kernels["start_ns"].to_numpy())[mine]
    tokens = counted["decode_tokens"].to_numpy(np.float64)[step[mine]]
    looked_at = len(place) / max(len(placed), 1)
    of_shape = launches.assign(ns=took, tokens=tokens).groupby(
        list(launches), observed=True, sort=False
    )
    rows = of_shape.agg(ns=("ns", "sum"), calls=("ns", "size"), tokens=("tokens", "mean"))
    return _exact(rows.reset_index(), sums[sums["phase"] == phase]), looked_at


def _exact(looked_at: pd.DataFrame, sums: pd.DataFrame) -> pd.DataFrame:
    """The sampled launches, scaled to the time and calls that each kernel has over all rows."""
    keys = ["name", "component"]
    whole = sums.astype(dict.fromkeys(keys, str)).groupby(keys)[["ns", "calls"]].sum()
    launches = looked_at.astype(dict.fromkeys(keys, str)).reset_index(drop=True)
    sampled = launches.groupby(keys)[["ns", "calls"]].transform("sum")
    whole_of_row = whole.reindex(pd.MultiIndex.from_frame(launches[keys])).reset_index(drop=True)
    for column in ("ns", "calls"):
        # A kernel that took no time at all has none to share.
        share = launches[column] / sampled[column].replace(0, 1)
        launches[column] = share * whole_of_row[column].fillna(0)
    return launches.sort_values("ns", ascending=False, kind="stable", ignore_index=True)

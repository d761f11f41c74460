"""Says of each launch shape of decode steps how it fills the GPU and its tiles."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import pandas as pd

from spark_prof.analyzers.ceilings.config import Config
from spark_prof.analyzers.ceilings.step import expected_experts
from spark_prof.analyzers.classify.classifier import is_gemm
from spark_prof.analyzers.counters.counter_rows import Counters
from spark_prof.analyzers.lookup import mapping_in
from spark_prof.analyzers.roofline.device_ceilings import device_of
from spark_prof.analyzers.shapes.grid_occupancy import (
    busy_share,
    counted_phase,
    launches_of,
    occupancy_of,
)
from spark_prof.analyzers.shapes.shape_rows import Occupancy, ShapeRow, Shapes, Tile
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
    known = find_gpu(name, capability)
    count = gpu.get("multiprocessors")
    if not isinstance(count, int) or isinstance(count, bool) or not 0 < count < 1 << 16:
        count = known.multiprocessors if known else None
    capability = capability or (known.compute_capability if known else "")
    limits = SM_LIMITS.get(capability)
    notes = []
    if count is None:
        notes.append(
            "Nothing tells how many multiprocessors the GPU has: no waves, and nothing about "
            "grids that are too small for it."
        )
    if limits is None:
        what = f"of compute capability {capability}" if capability else "of the GPU"
        notes.append(f"The limits of a multiprocessor {what} are not known: no occupancy.")
    if looked_at < 1:
        notes.append(
            f"How the time of a kernel is split among its shapes was taken from {looked_at:.1%} of "
            "all launches, spread over the recording."
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
    held: Occupancy | None = None
    if limits:
        held = occupancy_of(limits, threads, int(launch.registers), int(launch.shared_bytes))
    waves = busy = None
    if multiprocessors and blocks:
        # Whatever a block needs: fewer blocks than multiprocessors leave some of them idle.
        if held:
            places = multiprocessors * held.blocks
            waves, busy = blocks / places, busy_share(blocks, places, multiprocessors)
        elif blocks < multiprocessors:
            busy = blocks / multiprocessors
    tile = tile_of(launch.name)
    tokens = float(launch.tokens)
    used, expected = _rows_used(tile, launch.name, launch.component, tokens, config)
    return ShapeRow(
        name=launch.name,
        component=launch.component,
        grid=str(launch.grid),
        block=str(launch.block),
        registers=int(launch.registers),
        shared_bytes=int(launch.shared_bytes),
        calls=float(launch.calls),
        us=float(launch.ns) / 1e3,
        share=float(launch.ns) / whole,
        blocks=blocks,
        waves=waves,
        busy=busy,
        occupancy=held,
        achieved=achieved.get((launch.name, launch.component)),
        tile=tile,
        tokens=tokens,
        rows_used=used,
        expected=expected,
    )


def _rows_used(
    tile: Tile | None, name: str, component: str, tokens: float, config: Config
) -> tuple[float | None, bool]:
    """Rows of the tile that hold tokens, and whether that is only to be expected."""
    if tile is None or not tile.token_rows or tokens <= 0 or not is_gemm(name):
        return None, False
    expected = False
    if component == "experts":
        found = rows_per_expert(config, tokens)
        if found is None:
            return None, False
        tokens, expected = found, tokens > 1
    # The last of several tiles is the one that is not full.
    tiles = math.ceil(tokens / tile.token_rows)
    return tokens / tiles, expected


def _product(triple: object) -> int:
    """Of the three numbers of a grid or block; 0 where they are none."""
    try:
        sides = [int(side) for side in str(triple).split(",")]
    except ValueError:
        return 0
    return math.prod(sides) if len(sides) == 3 and all(0 < s < 1 << 32 for s in sides) else 0


def rows_per_expert(config: Config, tokens: float) -> float | None:
    """Mean tokens of an expert that gets any, where each token finds all experts equally likely.

    Exact for one token: each of its experts gets that one.

    Returns:
        None where the configuration does not tell the experts.
    """
    among, chosen = config.experts, config.experts_per_token
    if not 0 < chosen <= among:
        return None
    tokens = max(tokens, 1.0)
    return tokens * chosen / expected_experts(among, chosen, tokens)

"""Says of each launch shape of decode steps how it fills the GPU and its tiles."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import pandas as pd

from spark_prof.analyzers.classify.classifier import is_gemm
from spark_prof.analyzers.counters.counter_rows import Counters
from spark_prof.analyzers.lookup import mapping_in
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
    gpu, config = (mapping_in(facts, name) for name in ("gpu", "model_config"))
    device = _Device(gpu)
    achieved = _achieved(counters)
    whole = float(sums.loc[sums["phase"] == phase, "ns"].sum()) or 1.0
    rows = tuple(
        _row(launch, whole, device, config, achieved) for launch in launches.itertuples(index=False)
    )
    notes = list(device.notes())
    if looked_at < 1:
        notes.append(
            f"How the time of a kernel is split among its shapes was taken from {looked_at:.1%} of "
            "all launches, spread over the recording."
        )
    count = int((steps["phase"] == phase).sum())
    return Shapes(count, device.multiprocessors, rows, tuple(notes))


class _Device:
    """What is known of the GPU that ran the kernels.

    Attributes:
        multiprocessors: how many it has, None where unknown.
        limits: of one of them, None where unknown.
    """

    def __init__(self, gpu: Mapping[str, Any]) -> None:
        self._name = str(gpu.get("name") or "")
        capability = gpu.get("compute_capability")
        known = find_gpu(self._name, capability if isinstance(capability, str) else None)
        count = gpu.get("multiprocessors")
        self.multiprocessors: int | None = known.multiprocessors if known else None
        if isinstance(count, int) and not isinstance(count, bool) and 0 < count < 1 << 16:
            self.multiprocessors = count
        self._capability = str(capability or (known.compute_capability if known else ""))
        self.limits: SmLimits | None = SM_LIMITS.get(self._capability)

    def notes(self) -> tuple[str, ...]:
        """What is not known."""
        notes = []
        if self.multiprocessors is None:
            notes.append(
                "Nothing tells how many multiprocessors the GPU has: no waves, and nothing about "
                "grids that are too small for it."
            )
        if self.limits is None:
            what = f"of compute capability {self._capability}" if self._capability else "of the GPU"
            notes.append(f"The limits of a multiprocessor {what} are not known: no occupancy.")
        return tuple(notes)


def _row(
    launch: Any,
    whole: float,
    device: _Device,
    config: Mapping[str, Any],
    achieved: Mapping[tuple[str, str], float],
) -> ShapeRow:
    blocks, threads = _product(launch.grid), _product(launch.block)
    held: Occupancy | None = None
    if device.limits:
        held = occupancy_of(device.limits, threads, int(launch.registers), int(launch.shared_bytes))
    waves = busy = None
    if device.multiprocessors and blocks:
        # Whatever a block needs: fewer blocks than multiprocessors leave some of them idle.
        if held:
            places = device.multiprocessors * held.blocks
            waves, busy = blocks / places, busy_share(blocks, places, device.multiprocessors)
        elif blocks < device.multiprocessors:
            busy = blocks / device.multiprocessors
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
    tile: Tile | None, name: str, component: str, tokens: float, config: Mapping[str, Any]
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


def _achieved(counters: Counters | None) -> dict[tuple[str, str], float]:
    """Active warps by kernel and component, of the batch size that was sampled most."""
    if counters is None or not counters.batches:
        return {}
    return {
        (row.name, row.component): row.warps_active
        for row in counters.batches[0].rows
        if row.warps_active is not None
    }


def _product(triple: object) -> int:
    """Of the three numbers of a grid or block; 0 where they are none."""
    try:
        sides = [int(side) for side in str(triple).split(",")]
    except ValueError:
        return 0
    return math.prod(sides) if len(sides) == 3 and all(0 < s < 1 << 32 for s in sides) else 0


_EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts")
_MOST = 1 << 20
"""No model has more experts."""
_CHOSEN = ("num_experts_per_tok", "experts_per_token", "num_experts_per_token", "moe_topk")


def rows_per_expert(config: Mapping[str, Any], tokens: float) -> float | None:
    """Mean tokens of an expert that gets any, where each token finds all experts equally likely.

    Exact for one token: each of its experts gets that one.

    Returns:
        None where the configuration does not tell the experts.
    """
    among, chosen = _number(config, _EXPERTS), _number(config, _CHOSEN)
    if not among or not chosen or chosen > among:
        return None
    tokens = max(tokens, 1.0)
    hit: float = among * (1 - (1 - chosen / among) ** tokens)
    return tokens * chosen / hit


def _number(config: Mapping[str, Any], names: tuple[str, ...]) -> int:
    inner = config.get("text_config")
    for source in (config, inner if isinstance(inner, dict) else {}):
        for name in names:
            value = source.get(name)
            if isinstance(value, int) and not isinstance(value, bool) and 0 < value <= _MOST:
                return value
    return 0

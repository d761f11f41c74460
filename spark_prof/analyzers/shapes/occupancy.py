"""How many blocks of a kernel fit on a multiprocessor, and in how many waves a grid runs.

The arithmetic of NVIDIA's occupancy calculator, cuda_occupancy.h of the CUDA toolkit. It takes the
multiprocessor's whole shared memory for given: the driver moves the border to the cache for a
kernel that needs it. Clusters are left out, as no trace says how large they are.
"""

from __future__ import annotations

import math

from spark_prof.analyzers.shapes.model import Occupancy
from spark_prof.rules.gpus import SmLimits

_WARP = 32
_MOST_THREADS = 1024
_MOST_REGISTERS = 255


def occupancy_of(
    limits: SmLimits, threads: int, registers: int, shared_bytes: int
) -> Occupancy | None:
    """What one multiprocessor holds of a kernel; None where no GPU could have launched it so.

    Args:
        limits: of the multiprocessor.
        threads: of a block.
        registers: of a thread.
        shared_bytes: static and dynamic shared memory of a block.
    """
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
    """Share of the GPU that has something to do while a grid runs.

    Args:
        blocks: of the grid.
        places: blocks that all multiprocessors hold together.
        multiprocessors: of the GPU.
    """
    if blocks <= places:
        # Blocks spread over the multiprocessors before two share one.
        return min(blocks, multiprocessors) / multiprocessors
    waves = blocks / places
    return waves / math.ceil(waves)


def _rounded_up(value: int, step: int) -> int:
    return -(-value // step) * step

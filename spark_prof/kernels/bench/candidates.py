"""What a search tries of a BF16 weight: few configurations, as all of them are timed.

A warp loads 4 KB of BF16 at a time, which take 32 registers a thread, so that what a warp has in
flight and how many warps a multiprocessor holds are one choice.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from spark_prof.kernels.dense import LinearConfig
from spark_prof.kernels.operands import stacks_at_a_time, token_tiles
from spark_prof.kernels.pack import STACK

_IN_FLIGHT = {
    1: ((1, 0, 24), (1, 1, 24), (2, 0, 16), (2, 1, 12), (3, 0, 12)),
    2: ((1, 0, 16), (1, 1, 16), (2, 0, 12), (2, 1, 12), (3, 0, 8)),
}
"""Depth, x_ahead and warps of a multiprocessor that leave registers for it, by tiles of tokens."""

_MANY_ROWS = 16384
_FEW_ROWS = 1024
_FEW_UNITS = 8
_LAYOUTS = {
    "many": ((4, 1), (8, 1), (4, 4), (8, 8)),
    "some": ((4, 4), (8, 8), (12, 12), (16, 16), (8, 4), (16, 8)),
    "few": ((4, 4), (8, 8), (12, 12), (16, 16), (23, 23), (8, 4)),
    "narrow": ((4, 4), (8, 4), (4, 2), (8, 2), (4, 1)),
}
"""Warps of a block, and those of them that share a stack, by how many rows or columns there are.

23 are the units of 2880 columns.
"""


def bf16_candidates(
    rows: int, columns: int, tokens: int, processors: int
) -> Iterator[LinearConfig]:
    """Configurations for a BF16 weight, none of which the compiler gives local memory."""
    units = -(-columns // 128)
    for warps, split in _LAYOUTS[_size(rows, units)]:
        if split > units:
            continue
        for depth, x_ahead, held in _IN_FLIGHT[token_tiles(tokens)]:
            if warps > held or split * (depth - 1) >= units:
                continue
            config = LinearConfig(warps, split, depth, x_ahead, held // warps)
            yield config
            work = -(-rows // (STACK * stacks_at_a_time(warps, split)))
            if work > processors * config.min_blocks:
                yield replace(config, blocks=config.min_blocks)


def _size(rows: int, units: int) -> str:
    if units <= _FEW_UNITS:
        return "narrow"
    return "many" if rows >= _MANY_ROWS else "few" if rows <= _FEW_ROWS else "some"

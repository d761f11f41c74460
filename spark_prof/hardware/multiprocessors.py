"""What one multiprocessor can hold at a time, by compute capability, to calculate occupancy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

_KIB = 1024


@dataclass(frozen=True)
class SmLimits:
    """Limits of one multiprocessor.

    From "Technical Specifications per Compute Capability" in the CUDA programming guide and, of
    the same figures, CCCL's cuda/__device/arch_traits.h. Allocation granularities are those of the
    occupancy calculator, cuda_occupancy.h.

    Attributes:
        shared_bytes: shared memory of all blocks together.
        block_shared_bytes: most shared memory of one block, by opt-in, without what is reserved.
        threads: resident threads.
        blocks: resident blocks.
        registers: 32-bit registers.
        register_granularity: registers are given out to a warp in multiples of this.
        shared_granularity: shared memory is given out to a block in multiples of this, in bytes.
        reserved_shared_bytes: what the driver takes of each block's shared memory.
        partitions: schedulers, among which the warps and their registers are split.
    """

    shared_bytes: int
    block_shared_bytes: int
    threads: int
    blocks: int
    registers: int = 64 * _KIB
    register_granularity: int = 256
    shared_granularity: int = 128
    reserved_shared_bytes: int = _KIB
    partitions: int = 4

    @property
    def warps(self) -> int:
        """Resident warps of 32 threads."""
        return self.threads // 32


def _limits(shared_kib: int, threads: int, blocks: int) -> SmLimits:
    """Limits from compute capability 8.0 on: each block pays 1 KiB for the driver."""
    return SmLimits(shared_kib * _KIB, (shared_kib - 1) * _KIB, threads, blocks)


def _older(shared_kib: int, threads: int, blocks: int) -> SmLimits:
    """Limits before compute capability 8.0: nothing reserved, coarser pieces."""
    size = shared_kib * _KIB
    return SmLimits(size, size, threads, blocks, shared_granularity=256, reserved_shared_bytes=0)


SM_LIMITS: Mapping[str, SmLimits] = MappingProxyType(
    {
        "7.0": _older(96, 2048, 32),
        "7.2": _older(96, 2048, 32),
        "7.5": _older(64, 1024, 16),
        "8.0": _limits(164, 2048, 32),
        "8.6": _limits(100, 1536, 16),
        "8.7": _limits(164, 1536, 16),
        "8.9": _limits(100, 1536, 24),
        "9.0": _limits(228, 2048, 32),
        "10.0": _limits(228, 2048, 32),
        "10.3": _limits(228, 2048, 32),
        "11.0": _limits(228, 1536, 24),
        "12.0": _limits(100, 1536, 24),
        # A GB10 reported the same: 65,536 registers, 102,400 bytes, 101,376 a block, 1,536 threads
        # (christopherowen/spark-vllm-mxfp4-docker, SM121_MOE_TILE_PROFILING_FINDINGS.md).
        "12.1": _limits(100, 1536, 24),
    }
)
"""Limits by compute capability, as a driver writes it."""

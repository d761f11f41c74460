"""AMD's accelerators by what a trace tells of a device that it gives no name.

Compute units and memory as in AMD's data sheets; major and minor number as HIP gives them, of the
architecture gfx942 9 and 4. Of an accelerator of two dies each is a device of its own.
"""

from __future__ import annotations

from dataclasses import dataclass

_GIB = 1 << 30


@dataclass(frozen=True)
class AmdGpu:
    """An accelerator, or several that cannot be told apart."""

    name: str
    architecture: tuple[int, int]  # major and minor number
    compute_units: int
    memory_gb: int  # of a device; a driver keeps some of it


AMD_GPUS = (
    AmdGpu("AMD Instinct MI210 or MI250", (9, 0), 104, 64),
    AmdGpu("AMD Instinct MI250X", (9, 0), 110, 64),
    AmdGpu("AMD Instinct MI100", (9, 0), 120, 32),
    AmdGpu("AMD Instinct MI300A", (9, 4), 228, 128),
    AmdGpu("AMD Instinct MI300X", (9, 4), 304, 192),
    AmdGpu("AMD Instinct MI325X", (9, 4), 304, 256),
    AmdGpu("AMD Instinct MI308X", (9, 4), 80, 192),
    AmdGpu("AMD Instinct MI350X or MI355X", (9, 5), 256, 288),
)

_LEAST = 0.9  # of its memory that a device reports


def amd_gpu(major: int, minor: int, compute_units: int, memory_bytes: int) -> str:
    """The name of the accelerator with those figures, empty where no row fits."""
    memory = memory_bytes / 1e9
    fitting = (
        gpu.name
        for gpu in AMD_GPUS
        if (gpu.architecture, gpu.compute_units) == ((major, minor), compute_units)
        and _LEAST * gpu.memory_gb <= memory <= gpu.memory_gb * _GIB / 1e9
    )
    return next(fitting, "")

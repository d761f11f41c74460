"""The most that a GPU can do: a step's bytes over a bandwidth, its arithmetic over a peak."""

from __future__ import annotations

import math

from spark_prof.analyzers.ceilings.model import Ceiling, GpuCeilings, Step
from spark_prof.rules.gpus import Gpu

_RUNS_IN = {
    "nvfp4": ("fp4", "fp8", "bf16"),
    "mxfp4": ("fp4", "fp8", "bf16"),
    "fp8": ("fp8", "bf16"),
    "mxfp8": ("fp8", "bf16"),
    "int8": ("int8", "bf16"),
    "fp32": ("tf32",),
}
"""The fastest arithmetic for weights of each format, best first; else BF16."""


def peak_of(gpu: Gpu, weights: str) -> float:
    """Operations per second at which the GPU can use weights of that format at most.

    Where the table has no figure for the arithmetic, its fastest one stands in: a ceiling that is
    too high is still one.
    """
    for precision in _RUNS_IN.get(weights, ("bf16",)):
        if precision in gpu.peaks:
            return gpu.peaks[precision].value
    return max(figure.value for figure in gpu.peaks.values())


def ceiling_at(step: Step, bandwidth: float, basis: str, gpu: Gpu | None = None) -> Ceiling:
    """The ceiling for one bandwidth.

    Args:
        step: what must be moved and calculated.
        bandwidth: in bytes per second.
        basis: where the bandwidth comes from.
        gpu: whose arithmetic limits it too; None for memory alone.
    """
    memory = step.read / bandwidth
    arithmetic = 0.0
    if gpu is not None:
        arithmetic = sum(done / peak_of(gpu, form) for form, done in step.operations.items())
    seconds = max(memory, arithmetic)
    rate = step.question.accepted / seconds if seconds else 0.0
    return Ceiling(
        bandwidth=bandwidth,
        basis=basis,
        step_us=seconds * 1e6,
        tokens_per_s=rate,
        total_tokens_per_s=rate * step.question.batch,
        limit="memory" if memory >= arithmetic else "arithmetic",
    )


def ceilings_on(step: Step, gpu: Gpu) -> GpuCeilings:
    """The ceilings by the GPU's data sheet and, where it is known, as a kernel reads."""
    sheet, read = gpu.memory_bandwidth, gpu.read_bandwidth
    stored = sum(row.stored for row in step.rows)
    return GpuCeilings(
        gpu.name,
        math.ceil(stored / gpu.memory_bytes),
        ceiling_at(step, sheet.value, sheet.source, gpu),
        None if read is None else ceiling_at(step, read.value, read.source, gpu),
    )

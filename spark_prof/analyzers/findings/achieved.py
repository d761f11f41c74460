"""How fast a component's weights were read in decode steps, against the GPU's memory."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from spark_prof.analyzers.model import Report
from spark_prof.hardware import find_gpu

__all__ = ["achieved_bandwidth"]

_WHOLE = ("qkv", "o_proj", "mlp", "shared_experts", "lm_head")
"""Components of which a step reads all weights; of experts it reads those that were chosen."""


def achieved_bandwidth(report: Report, components: Collection[str]) -> Iterator[str]:
    """A sentence for each of the components whose weights a decode step reads whole."""
    gpu = find_gpu(report.gpu.name, report.gpu.compute_capability)
    for row in report.components:
        if row.name not in components or row.name not in _WHOLE or not row.decode_us_per_step:
            continue
        size = sum(module.bytes for module in report.modules if module.component == row.name)
        if not size:
            continue
        reached = size / row.decode_us_per_step * 1e6
        share = ""
        if gpu is not None:
            share = f", {reached / gpu.memory_bandwidth.value:.0%} of its data sheet's bandwidth"
        yield (
            f"Measured: a decode step reads {size / 1e6:,.0f} MB of {row.name} weights in "
            f"{row.decode_us_per_step:,.0f} us, {reached / 1e9:,.0f} GB/s{share}."
        )

"""Decode steps of whole models that were measured in a live engine, stock and swapped."""

from __future__ import annotations

from typing import NamedTuple

from spark_prof.analyzers.model import Report
from spark_prof.kernels.tuning import ELSEWHERE
from spark_prof.rules.tune_candidates import IN_LAYER


class MeasuredStep(NamedTuple):
    """A step of one model on one GPU. Times and kernels: first of stock vLLM, then of the side."""

    model: str
    class_: str  # in vLLM
    layers: int
    experts: int  # bytes of one layer's
    tokens: int
    machine: str
    capability: str
    side: str
    wall_ms: tuple[float, float]
    device_ms: tuple[float, float]
    kernels: tuple[int, int]

    @property
    def text(self) -> str:
        """What was measured, as a finding says it."""
        tokens = f"{self.tokens} token{'s' if self.tokens > 1 else ''}"
        (stock, own), (stock_device, own_device) = self.wall_ms, self.device_ms
        return (
            f"Measured on {self.machine}, {self.model}, {tokens}: a step of {own:.2f} ms, stock"
            f" {stock:.2f}, on the device {own_device:.2f} and {stock_device:.2f};"
            f" {self.kernels[1]} kernels, stock {self.kernels[0]}."
        )


_GPT_OSS = ("gpt-oss-20b", "GptOssForCausalLM", 24, 425_615_360)
_QWEN3 = ("qwen3-30b-a3b-nvfp4", "Qwen3MoeForCausalLM", 48, 339_739_648)
_H200 = ("NVIDIA H200", "9.0")
_KEPT = "layer=spark_prof,o=spark_prof,lm_head=spark_prof"
_MXFP4 = "layer=mxfp4,o=mxfp4,lm_head=mxfp4"

MEASURED_STEPS = (
    MeasuredStep(*_GPT_OSS, 1, *_H200, _KEPT, (2.861, 1.838), (2.841, 1.464), (496, 161)),
    MeasuredStep(*_GPT_OSS, 1, *_H200, _MXFP4, (2.861, 1.756), (2.841, 1.082), (496, 161)),
    MeasuredStep(*_QWEN3, 1, *_H200, _KEPT, (3.914, 1.653), (4.039, 1.491), (929, 306)),
)
"""Of benchmarks/results/engine-steps-h200.json. Where that insisted (`spark_prof!`) the dispatcher
may leave a matrix to vLLM's kernel, which is as fast there."""


def measured_step(
    components: tuple[str, ...], report: Report, kernel: str = "spark_prof"
) -> MeasuredStep | None:
    """What kernels of this package bring a recorded model's decode step as a whole.

    None where nobody measured it: another model, number of tokens or architecture, several GPUs,
    another attention than FlashAttention; or where these kernels ran already.

    Args:
        components: those that a change shall be for, one of them inside the slot `layer`.
        kernel: spark_prof, or mxfp4 for BF16 weights that are quantized at load.
    """
    decode = report.decode_roofline
    if decode is None or not {*IN_LAYER}.intersection(components) or len(report.ranks) > 1:
        return None
    attend = {m.kernel for m in report.modules if m.component == "attention" and m.kernel}
    if attend != {"FlashAttentionImpl"} or any(k.name == "attention" for k in report.kernels):
        return None
    experts = {(m.count, m.bytes // m.count) for m in report.modules if m.component == "experts"}
    for row in MEASURED_STEPS:
        here = row.machine == report.gpu.name or row.wall_ms[0] >= ELSEWHERE * row.wall_ms[1]
        same = row.class_ in report.run.model and experts == {(row.layers, row.experts)}
        alike = row.capability == report.gpu.compute_capability and row.tokens == decode.tokens
        if here and same and alike and row.side.startswith(f"layer={kernel},"):
            return row
    return None

"""Decode steps of whole models that were measured in a live engine, stock and swapped."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

import msgspec

from spark_prof import rules
from spark_prof.analyzers.model import Report
from spark_prof.kernels.tuning import ELSEWHERE
from spark_prof.rules.tune_candidates import IN_LAYER


@dataclass(frozen=True)
class MeasuredStep:
    """A step of one model on one GPU. Times and kernels: first of stock vLLM, then of the side."""

    model: str
    class_: str  # in vLLM
    layers: int
    experts: int  # bytes of one layer's
    tokens: int
    machine: str
    capability: str
    side: str
    kernel: str  # of the slot `layer`: spark_prof or mxfp4
    wall_ms: tuple[float, float]
    device_ms: tuple[float, float]
    kernels: tuple[int, int]
    stock: str  # family of the kernels that stock vLLM's experts ran on
    vllm: str

    @property
    def text(self) -> str:
        """What was measured, as a finding says it."""
        tokens = f"{self.tokens} token{'s' if self.tokens > 1 else ''}"
        (stock, swapped), (stock_device, swapped_device) = self.wall_ms, self.device_ms
        return (
            f"Measured on {self.machine} with vLLM {self.vllm}, {self.model}, {tokens}: a step of"
            f" {swapped:.2f} ms, stock {stock:.2f}, on the device {swapped_device:.2f} and"
            f" {stock_device:.2f};"
            f" {self.kernels[1]} kernels, stock {self.kernels[0]}."
        )


@cache
def measured_steps() -> tuple[MeasuredStep, ...]:
    """Those of `rules/measured_steps.json`, which `benchmarks/measured_steps.py` writes."""
    stored = Path(rules.__file__).with_name("measured_steps.json").read_bytes()
    return msgspec.json.decode(stored, type=tuple[MeasuredStep, ...])


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
    for row in measured_steps():
        here = row.machine == report.gpu.name or row.wall_ms[0] >= ELSEWHERE * row.wall_ms[1]
        same = row.class_ == report.run.architecture and experts == {(row.layers, row.experts)}
        comparable = row.capability == report.gpu.compute_capability and row.tokens == decode.tokens
        if here and same and comparable and row.kernel == kernel:
            return row
    return None

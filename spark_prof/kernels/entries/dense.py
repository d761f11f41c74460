"""Dense layers: weights of 4, 8 or 16 bits, activations in BF16."""

from __future__ import annotations

from spark_prof.kernels.entry import Late, ReplacementKernel, Slot
from spark_prof.kernels.traffic import LINEAR, LINEAR_BF16


def _dense(
    slot: Slot, bits: str, does: str, formats: tuple[str, ...], shapes: str
) -> ReplacementKernel:
    return ReplacementKernel(
        name=f"{slot}-{bits}",
        slot=slot,
        does=does,
        formats=formats,
        tokens=(1, 16),
        shapes=shapes,
        operation=Late("spark_prof.kernels.dense:linear"),
        reference=Late("spark_prof.kernels.check.oracles:linear_oracle"),
        codes=Late("spark_prof.kernels.dense:codes"),
        bytes=LINEAR_BF16 if formats == ("bf16",) else LINEAR,
        tolerance="each element within c 2^-8 sum|x||w|, c = 1 + K 2^-15",
        check=bits,
        bench=None if bits == "fp8" else "dense",
        tuned_as="dense",
    )


_FP4 = (
    "w4a16", "y = x W^T + bias", ("nvfp4", "mxfp4"), "any N; K a multiple of 16 (MXFP4: of 32)",
)  # fmt: skip
_FP8 = ("fp8", "y = x W^T + bias, a scale for each row", ("fp8",), "any N; K a multiple of 16")
_BF16 = ("w16a16", "y = x W^T + bias", ("bf16",), "N and K multiples of 16")

DENSE = (
    _dense("qkv", *_FP4),
    _dense("o", *_FP4),
    _dense("mlp", *_FP4),
    _dense("lm_head", *_FP4),
    _dense("qkv", *_FP8),
    _dense("o", *_FP8),
    _dense("mlp", *_FP8),
    _dense("lm_head", *_FP8),
    _dense("qkv", *_BF16),
    _dense("o", *_BF16),
    _dense("mlp", *_BF16),
    _dense("router", *_BF16),
    _dense("lm_head", *_BF16),
)
"""One kernel in all of these slots. It reads a BF16 weight where it is, or what `quantize_at_load`
made of it: mxfp4 or fp8. A router's matrix is small, and is BF16 in all models."""

"""Dense layers: weights of 4 or 8 bits, activations in BF16."""

from __future__ import annotations

from spark_prof.kernels.entry import Late, ReplacementKernel, Slot
from spark_prof.kernels.traffic import LINEAR

__all__ = ["DENSE"]


def _dense(
    slot: Slot, bits: str, does: str, formats: tuple[str, ...], columns: str
) -> ReplacementKernel:
    return ReplacementKernel(
        name=f"{slot}-{bits}",
        slot=slot,
        does=does,
        formats=formats,
        tokens=(1, 16),
        shapes=f"any N; {columns}",
        operation=Late("spark_prof.kernels.dense:linear"),
        reference=Late("spark_prof.kernels.check.oracles:linear_oracle"),
        codes=Late("spark_prof.kernels.dense:codes"),
        bytes=LINEAR,
        tolerance="each element within c 2^-8 sum|x||w|, c = 1 + K 2^-15",
        check=bits,
        bench="dense" if bits == "w4a16" else None,
        tuned_as="dense",
    )


_FP4 = ("w4a16", "y = x W^T + bias", ("nvfp4", "mxfp4"), "K a multiple of 16 (MXFP4: of 32)")
_FP8 = ("fp8", "y = x W^T + bias, a scale for each row", ("fp8",), "K a multiple of 16")

DENSE = (
    _dense("qkv", *_FP4),
    _dense("o", *_FP4),
    _dense("mlp", *_FP4),
    _dense("lm_head", *_FP4),
    _dense("qkv", *_FP8),
    _dense("o", *_FP8),
    _dense("mlp", *_FP8),
    _dense("lm_head", *_FP8),
)
"""One kernel in all of these slots; a BF16 weight becomes mxfp4 or fp8 by `quantize_at_load`."""

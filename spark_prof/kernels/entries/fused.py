"""Passes that quantize activations on the way: after a norm, an activation, or to their experts."""

from __future__ import annotations

from typing import Literal

from spark_prof.kernels.entry import Late, ReplacementKernel, Slot, Traffic
from spark_prof.kernels.tuning import Work

_TOLERANCE = (
    "none: bit for bit what vLLM's separate kernels give; on the CPU reciprocals and roots are "
    "rounded correctly, which a GPU's need not be"
)
_OUT = "c M K + s P K"
"""c: bytes a code, 1/2 or 1; s: of scales for each, 1/16 or 1/32; P: M filled up to 128."""


def _fused(
    slot: Slot,
    name: str,
    format: Literal["nvfp4", "mxfp8"],  # noqa: A002 - the word of the formats
    does: str,
    module: str,
    oracle: str,
    bytes_: Traffic,
) -> ReplacementKernel:
    return ReplacementKernel(
        name=f"{name}-{format}",
        slot=slot,
        does=f"{does}, quantized to {format.upper()}",
        formats=(format,),
        tokens=(1, 4096),
        shapes=f"K a multiple of {16 if format == 'nvfp4' else 32}",
        operation=Late(f"spark_prof.kernels.{module}:{module}"),
        reference=Late(f"spark_prof.kernels.check.fused_oracles:{oracle}"),
        codes=Late(f"spark_prof.kernels.{module}:codes"),
        bytes=bytes_,
        tolerance=_TOLERANCE,
        check=module,
        bench="fused",
    )


def _traffic(read: str, module: str) -> Traffic:
    moved = Late(f"spark_prof.kernels.{module}:moved_bytes")
    return Traffic(
        f"{read} + {_OUT}", lambda work: int(moved(work.tokens, work.columns, work.format))
    )


def _expanded(work: Work) -> int:
    moved = Late("spark_prof.kernels.expand_quantize:moved_bytes")
    return int(moved(work.tokens, work.tokens * work.top_k, work.columns, work.format))


_NORM = (
    "RMSNorm(x + residual) * weight",
    "norm_quantize",
    "norm_oracle",
    _traffic("2 K + 6 M K", "norm_quantize"),
)
_SILU = (
    "SiLU(gate) * up",
    "activation_quantize",
    "activation_oracle",
    _traffic("4 M K", "activation_quantize"),
)
_EXPAND = (
    "each token once for each of its experts, rows sorted by expert",
    "expand_quantize",
    "expanded_oracle",
    Traffic("2 M K + (c + s) k M K", _expanded),
)

FUSED = (
    _fused("norm", "norm", "nvfp4", *_NORM),
    _fused("norm", "norm", "mxfp8", *_NORM),
    _fused("mlp", "mlp-silu", "nvfp4", *_SILU),
    _fused("mlp", "mlp-silu", "mxfp8", *_SILU),
    _fused("moe", "moe-expand", "nvfp4", *_EXPAND),
    _fused("moe", "moe-expand", "mxfp8", *_EXPAND),
)
"""They write scales in the order 128x4, padded with 0, as tensor cores of Blackwell read them."""

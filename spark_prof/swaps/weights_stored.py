"""How vLLM's quantization methods store a layer before it is laid out for a kernel; reads a matrix.

Each row is a class of vLLM and the parameters that its `create_weights` registers. A method that
hands its work on is written with what it hands it to: `CompressedTensorsLinearMethod` to the
layer's `scheme`, `ModelOptLinearMethod` to its own `wkey`. Read in vLLM 0.24 to 0.33; a class that
has another name there has a row for each name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch

from spark_prof.kernels.formats import Convention, Fp8Rows, GlobalScale, MxFp4, NvFp4
from spark_prof.kernels.kernel_error import KernelError
from spark_prof.swaps.layers import LinearLayer

Format = Literal["plain", "nvfp4", "mxfp4", "fp8"]
"""`plain` is not quantized."""


@dataclass(frozen=True)
class StoredAs:
    """The parameters of a layer. Those of experts have `w13_` or `w2_` before their names."""

    format: Format
    weight: str = "weight"
    scale: str = "weight_scale"  # the scales of its blocks, rows or shards
    global_scale: str = ""  # those of its shards, above the scales of its blocks
    convention: Convention = "multiplies"  # which way round `global_scale` is
    # Of activations; weights that are multiplied with BF16 have no use for it.
    input_scale: str = ""


_PLAIN = StoredAs("plain")
_FP8 = StoredAs("fp8")
_FP8_STATIC = StoredAs("fp8", input_scale="input_scale")
_MXFP4_PACKED = StoredAs("mxfp4", "weight_packed")
_MODELOPT_NVFP4 = StoredAs("nvfp4", global_scale="weight_scale_2", input_scale="input_scale")
_COMPRESSED_NVFP4 = StoredAs(
    "nvfp4",
    "weight_packed",
    global_scale="weight_global_scale",
    convention="divides",
    input_scale="input_global_scale",
)
_COMPRESSED = "CompressedTensorsLinearMethod/CompressedTensors"
_MODELOPT = "ModelOptLinearMethod/K"  # since 0.31

LINEAR = {
    "UnquantizedLinearMethod": _PLAIN,
    "UnquantizedEmbeddingMethod": _PLAIN,
    "ModelOptNvFp4LinearMethod": _MODELOPT_NVFP4,
    "ModelOptNvFp4W4A16LinearMethod": _MODELOPT_NVFP4,
    _MODELOPT + "Nvfp4Static": _MODELOPT_NVFP4,
    _COMPRESSED + "W4A4Fp4": _COMPRESSED_NVFP4,
    _COMPRESSED + "W4A4Mxfp4": _MXFP4_PACKED,
    _COMPRESSED + "W8A8Fp8": _FP8_STATIC,
    _COMPRESSED + "W8A16Fp8": _FP8_STATIC,
    "ModelOptFp8LinearMethod": _FP8_STATIC,
    "ModelOptFp8PcPtLinearMethod": _FP8,
    _MODELOPT + "Fp8StaticTensor": _FP8_STATIC,
    _MODELOPT + "Fp8StaticChannel": _FP8,
    "Fp8LinearMethod": _FP8_STATIC,
    "FBGEMMFp8LinearMethod": _FP8,
}
"""Of matrices and embeddings, by the class that registers them, behind a `/` that it hands its work
to."""

EXPERTS = {
    "UnquantizedFusedMoEMethod": _PLAIN,
    "GptOssMxfp4MoEMethod": StoredAs("mxfp4"),
    "Mxfp4MoEMethod": StoredAs("mxfp4"),
    "CompressedTensorsW4A4Mxfp4MoEMethod": _MXFP4_PACKED,
    "ModelOptNvFp4FusedMoE": _MODELOPT_NVFP4,
    "CompressedTensorsW4A4Nvfp4MoEMethod": _COMPRESSED_NVFP4,
}
"""Of a mixture of experts."""


def method_of(module: Any) -> str:
    """How the row of a module's quantization method is called, whether there is one or not."""
    method = getattr(module, "quant_method", None)
    name = type(method).__name__
    behind = getattr(method, "wkey", None)
    if behind is None and not name.startswith("Unquantized"):
        behind = getattr(module, "scheme", None)
    return name if behind is None else f"{name}/{type(behind).__name__}"


def stored_as(module: Any, rows: Mapping[str, StoredAs]) -> StoredAs:
    """The row of a module, a torch.nn.Module with a quantization method.

    Raises:
        KernelError: there is none.
    """
    method = method_of(module)
    if method not in rows:
        known = ", ".join(sorted({row.format for row in rows.values()} - {"plain"}))
        raise KernelError(f"{method} is not read; {known} of vLLM's own classes are")
    return rows[method]


def parameter(module: Any, name: str) -> torch.Tensor:
    """A parameter of a module, which it is not a copy of.

    Raises:
        KernelError: it has none of that name.
    """
    value = getattr(module, name, None)
    if not isinstance(value, torch.Tensor):
        raise KernelError(
            f"{method_of(module)} has no {name} in this layer: the weights are not laid out as"
            " they are read"
        )
    return value.detach()


_NEVER_LOADED = -448.0
"""vLLM starts FP8 scales with the lowest float32; below this one was in no checkpoint."""


def read_linear(name: str, module: Any, slot: str) -> LinearLayer:
    """Reads the matrix of a linear layer, an lm_head or an embedding, of this rank.

    Args:
        module: a torch.nn.Module whose weights are loaded and not yet laid out anew.

    Raises:
        KernelError: its quantization is not one that is read, or its scales are no scales.
    """
    return LinearLayer(name, slot, _weight(module, stored_as(module, LINEAR)))


def check_scale(value: torch.Tensor, what: str) -> torch.Tensor:
    """The scales as float32.

    Raises:
        KernelError: one is not a finite number above zero.
    """
    value = value.to(torch.float32)
    if not bool((value.isfinite() & (value > 0)).all()):
        raise KernelError(f"its {what} is not above zero and finite: was it in the checkpoint?")
    return value


def _weight(module: Any, stored: StoredAs) -> NvFp4 | MxFp4 | Fp8Rows | torch.Tensor:
    weight = parameter(module, stored.weight)
    if stored.format == "plain":
        if weight.ndim != 2 or not weight.is_floating_point():
            raise KernelError(f"its weight is {weight.dtype} {tuple(weight.shape)}, no matrix")
        return weight
    if getattr(module, "weight_block_size", None) is not None:
        raise KernelError("its FP8 weights have scales of blocks; those of rows or shards are read")
    scale = parameter(module, stored.scale)
    if stored.format == "mxfp4":
        return MxFp4(weight, scale)
    if stored.format == "fp8":
        return Fp8Rows(weight, _row_scales(scale, _widths(module, weight)))
    value = check_scale(parameter(module, stored.global_scale), stored.global_scale).flatten()
    if value.numel() == 1:
        return NvFp4(weight, scale, GlobalScale(value.reshape(()), stored.convention))
    shards = GlobalScale.of_shards(value, _widths(module, weight), stored.convention)
    return NvFp4(weight, scale, shards)


def _widths(module: Any, weight: torch.Tensor) -> Sequence[int]:
    """The rows of each matrix that was fused into this one, as q, k and v."""
    widths: Sequence[int] = getattr(module, "logical_widths", None) or [weight.shape[0]]
    if sum(widths) != weight.shape[0]:
        raise KernelError(f"its shards of {list(widths)} rows do not make {weight.shape[0]}")
    return widths


def _row_scales(scale: torch.Tensor, widths: Sequence[int]) -> torch.Tensor:
    """A scale for each row, of scales of the tensor, of shards or of rows."""
    if scale.ndim > 1 and scale.shape[-1] != 1:
        raise KernelError(
            f"its FP8 scales have the shape {tuple(scale.shape)}; those of rows or shards are read"
        )
    rows, scale = sum(widths), scale.flatten()
    if scale.numel() == len(widths) and scale.numel() != rows:
        if bool((scale <= _NEVER_LOADED).any()):
            # A checkpoint that has the shards fused has one scale for all of them.
            scale = scale.max().expand(len(widths))
        scale = scale.repeat_interleave(torch.tensor(list(widths), device=scale.device))
    elif scale.numel() == 1:
        scale = scale.expand(rows)
    if scale.numel() != rows:
        raise KernelError(f"its {scale.numel()} FP8 scales are neither of {rows} rows nor shards")
    return check_scale(scale, "FP8 scale").contiguous()

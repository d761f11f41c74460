"""How vLLM's quantization methods store a layer before it is laid out for a kernel; reads a matrix.

Each row is a class of vLLM and the parameters that its `create_weights` registers. A method that
hands its work on is written with what it hands it to: `CompressedTensorsLinearMethod` to the
layer's `scheme`, `ModelOptLinearMethod` to its own `wkey`. Read in vLLM 0.24 to 0.33; a class that
has another name there has a row for each name.
"""

from __future__ import annotations

from collections.abc import Sequence
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

    method: str  # the class that registers them, behind a `/` that it hands its work to
    format: Format
    weight: str = "weight"
    scale: str = "weight_scale"  # the scales of its blocks, rows or shards
    global_scale: str = ""  # those of its shards, above the scales of its blocks
    convention: Convention = "multiplies"  # which way round `global_scale` is
    # Of activations; weights that are multiplied with BF16 have no use for it.
    input_scale: str = ""


_COMPRESSED = "CompressedTensorsLinearMethod/CompressedTensors"
_MODELOPT = "ModelOptLinearMethod/K"  # since 0.31

LINEAR = (
    StoredAs("UnquantizedLinearMethod", "plain"),
    StoredAs("UnquantizedEmbeddingMethod", "plain"),
    StoredAs(
        "ModelOptNvFp4LinearMethod", "nvfp4",
        global_scale="weight_scale_2", input_scale="input_scale",
    ),
    StoredAs(
        "ModelOptNvFp4W4A16LinearMethod", "nvfp4",
        global_scale="weight_scale_2", input_scale="input_scale",
    ),
    StoredAs(
        _MODELOPT + "Nvfp4Static", "nvfp4",
        global_scale="weight_scale_2", input_scale="input_scale",
    ),
    StoredAs(
        _COMPRESSED + "W4A4Fp4", "nvfp4", "weight_packed",
        global_scale="weight_global_scale", convention="divides", input_scale="input_global_scale",
    ),
    StoredAs(_COMPRESSED + "W4A4Mxfp4", "mxfp4", "weight_packed"),
    StoredAs(_COMPRESSED + "W8A8Fp8", "fp8", input_scale="input_scale"),
    StoredAs(_COMPRESSED + "W8A16Fp8", "fp8", input_scale="input_scale"),
    StoredAs("ModelOptFp8LinearMethod", "fp8", input_scale="input_scale"),
    StoredAs("ModelOptFp8PcPtLinearMethod", "fp8"),
    StoredAs(_MODELOPT + "Fp8StaticTensor", "fp8", input_scale="input_scale"),
    StoredAs(_MODELOPT + "Fp8StaticChannel", "fp8"),
    StoredAs("Fp8LinearMethod", "fp8", input_scale="input_scale"),
    StoredAs("FBGEMMFp8LinearMethod", "fp8"),
)  # fmt: skip
"""Of matrices and embeddings."""

EXPERTS = (
    StoredAs("UnquantizedFusedMoEMethod", "plain"),
    StoredAs("GptOssMxfp4MoEMethod", "mxfp4"),
    StoredAs("Mxfp4MoEMethod", "mxfp4"),
    StoredAs("CompressedTensorsW4A4Mxfp4MoEMethod", "mxfp4", "weight_packed"),
    StoredAs(
        "ModelOptNvFp4FusedMoE", "nvfp4",
        global_scale="weight_scale_2", input_scale="input_scale",
    ),
    StoredAs(
        "CompressedTensorsW4A4Nvfp4MoEMethod", "nvfp4", "weight_packed",
        global_scale="weight_global_scale", convention="divides", input_scale="input_global_scale",
    ),
)  # fmt: skip
"""Of a mixture of experts."""


def method_of(module: Any) -> str:
    """How the row of a module's quantization method is called, whether there is one or not."""
    method = getattr(module, "quant_method", None)
    name = type(method).__name__
    behind = getattr(method, "wkey", None)
    if behind is None and not name.startswith("Unquantized"):
        behind = getattr(module, "scheme", None)
    return name if behind is None else f"{name}/{type(behind).__name__}"


def stored_as(module: Any, rows: tuple[StoredAs, ...]) -> StoredAs:
    """The row of a module, a torch.nn.Module with a quantization method.

    Raises:
        KernelError: there is none.
    """
    method = method_of(module)
    found = next((row for row in rows if row.method == method), None)
    if found is None:
        known = ", ".join(sorted({row.format for row in rows} - {"plain"}))
        raise KernelError(f"{method} is not read; {known} of vLLM's own classes are")
    return found


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

"""Reads a layer of a live vLLM model with the bits of its checkpoint, before its new layout.

How vLLM's quantization methods store a layer is a table: each row is a class of vLLM and the
parameters that its `create_weights` registers. A method that hands its work on is written with what
it hands it to: `CompressedTensorsLinearMethod` to the layer's `scheme`, `ModelOptLinearMethod` to
its own `wkey`. Read in vLLM 0.24 to 0.33; a class that has another name there has a row for each.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch

from spark_prof.kernels.candidate import Activation
from spark_prof.kernels.formats import (
    FP8_BLOCK,
    Convention,
    Fp8Blocks,
    Fp8Rows,
    GlobalScale,
    Int4Groups,
    MxFp4,
    NvFp4,
    QuantizedWeight,
    pack_nibbles,
)
from spark_prof.kernels.kernel_error import KernelError
from spark_prof.swaps.layers import ExpertsLayer, Layer, LinearLayer, NormLayer, RouterLayer

Format = Literal["plain", "nvfp4", "mxfp4", "fp8", "int4"]  # `plain` is not quantized


@dataclass(frozen=True)
class StoredAs:
    """The parameters of a layer. Those of experts have `w13_` or `w2_` before their names."""

    format: Format
    weight: str = "weight"
    scale: str = "weight_scale"  # the scales of its blocks, rows or shards
    fp8_block_scale: str = "weight_scale"  # those of FP8 where its config has blocks
    zeros: str = ""  # zero points of INT4; without them zero is 8
    # How codes of INT4 lie in words: eight of a column in a word, of a row, or of a row as AWQ has
    # them, even ones first.
    order: Literal["column", "row", "awq"] = "row"
    global_scale: str = ""  # those of its shards, above the scales of its blocks
    convention: Convention = "multiplies"  # which way round `global_scale` is
    # Of activations; weights that are multiplied with BF16 have no use for it.
    input_scale: str = ""


_PLAIN = StoredAs("plain")
_FP8 = StoredAs("fp8")
_FP8_STATIC = StoredAs("fp8", input_scale="input_scale")
_FP8_VLLM = replace(_FP8_STATIC, fp8_block_scale="weight_scale_inv")
_MXFP4_PACKED = StoredAs("mxfp4", "weight_packed")
_MODELOPT_NVFP4 = StoredAs("nvfp4", global_scale="weight_scale_2", input_scale="input_scale")
_COMPRESSED_NVFP4 = StoredAs(
    "nvfp4",
    "weight_packed",
    global_scale="weight_global_scale",
    convention="divides",
    input_scale="input_global_scale",
)
_GPTQ = StoredAs("int4", "qweight", "scales", order="column")
_AWQ = StoredAs("int4", "qweight", "scales", zeros="qzeros", order="awq")
_COMPRESSED_INT4 = StoredAs("int4", "weight_packed", zeros="weight_zero_point")
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
    _COMPRESSED + "WNA16": _COMPRESSED_INT4,
    "AutoAWQMarlinLinearMethod": _AWQ,
    "AutoGPTQLinearMethod": _GPTQ,
    "ModelOptFp8LinearMethod": _FP8_STATIC,
    "ModelOptFp8PcPtLinearMethod": _FP8,
    _MODELOPT + "Fp8StaticTensor": _FP8_STATIC,
    _MODELOPT + "Fp8StaticChannel": _FP8,
    "Fp8LinearMethod": _FP8_VLLM,
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
    "CompressedTensorsW8A8Fp8MoEMethod": _FP8_STATIC,
    "Fp8MoEMethod": _FP8_VLLM,
    "ModelOptFp8MoEMethod": _FP8_STATIC,
}


def method_of(module: Any) -> str:
    """The name of a module's quantization method, as the table of stored layouts spells it."""
    method = getattr(module, "quant_method", None)
    name = type(method).__name__
    behind = getattr(method, "wkey", None)
    if behind is None and not name.startswith("Unquantized"):
        behind = getattr(module, "scheme", None)
    return name if behind is None else f"{name}/{type(behind).__name__}"


def stored_as(module: Any, rows: Mapping[str, StoredAs]) -> StoredAs:
    """The row of a module, a torch.nn.Module with a quantization method."""
    method = method_of(module)
    if method not in rows:
        formats = ", ".join(sorted({row.format for row in rows.values()} - {"plain"}))
        raise KernelError(f"{method} is not read; {formats} of vLLM's own classes are")
    return rows[method]


def parameter(module: Any, name: str) -> torch.Tensor:
    """A parameter of a module, which it is not a copy of."""
    value = getattr(module, name, None)
    if not isinstance(value, torch.Tensor):
        raise KernelError(
            f"{method_of(module)} has no {name} in this layer: the weights are not laid out as"
            " they are read"
        )
    return value.detach()


def scales_of(module: Any, stored: StoredAs, prefix: str = "") -> torch.Tensor:
    """The scales of a module's blocks, rows or shards."""
    blocks = getattr(module, "weight_block_size", None)
    if stored.format != "fp8" or blocks is None:
        return parameter(module, prefix + stored.scale)
    if list(blocks) != [FP8_BLOCK, FP8_BLOCK]:
        raise KernelError(
            f"its FP8 weights have scales of {blocks[0]} x {blocks[1]} blocks; those of"
            f" {FP8_BLOCK} x {FP8_BLOCK} are read"
        )
    return parameter(module, prefix + stored.fp8_block_scale)


_NEVER_LOADED = -448.0
"""vLLM starts FP8 scales with the lowest float32; below this one was in no checkpoint."""


def read_linear(name: str, module: Any, slot: str) -> LinearLayer:
    """Reads the matrix of a linear layer, an lm_head or an embedding, of this rank."""
    return LinearLayer(name, slot, _weight(module, stored_as(module, LINEAR)))


def check_scale(value: torch.Tensor, name: str) -> torch.Tensor:
    """The scales as float32; refuses one that is not a finite number above zero."""
    value = value.to(torch.float32)
    if not bool((value.isfinite() & (value > 0)).all()):
        raise KernelError(f"its {name} is not above zero and finite: was it in the checkpoint?")
    return value


def _weight(module: Any, stored: StoredAs) -> QuantizedWeight | torch.Tensor:
    weight = parameter(module, stored.weight)
    if stored.format == "plain":
        if weight.ndim != 2 or not weight.is_floating_point():
            raise KernelError(f"its weight is {weight.dtype} {tuple(weight.shape)}, no matrix")
        return weight
    scale = scales_of(module, stored)
    if stored.format == "int4":
        return _int4(module, stored)
    if stored.format == "mxfp4":
        return MxFp4(weight, scale)
    if stored.format == "fp8":
        if getattr(module, "weight_block_size", None) is not None:
            return Fp8Blocks(weight, check_scale(scale, "FP8 scale"))
        return Fp8Rows(weight, _row_scales(scale, _widths(module, weight)))
    value = check_scale(parameter(module, stored.global_scale), stored.global_scale).flatten()
    if value.numel() == 1:
        return NvFp4(weight, scale, GlobalScale(value.reshape(()), stored.convention))
    shards = GlobalScale.of_shards(value, _widths(module, weight), stored.convention)
    return NvFp4(weight, scale, shards)


def _int4(module: Any, stored: StoredAs) -> Int4Groups:
    by_row = stored.order == "row"
    scales = parameter(module, stored.scale)
    scales = scales if by_row else scales.T
    rows, columns = scales.shape[0], module.input_size_per_partition
    config = getattr(module.quant_method, "quant_config", None)
    scheme = getattr(module, "scheme", None)
    if getattr(config, "desc_act", False) or getattr(scheme, "has_g_idx", False):
        raise KernelError("the columns of its groups are not side by side (act-order)")
    words = parameter(module, stored.weight)
    if words.numel() * 8 != rows * columns:
        raise KernelError(f"{words.numel()} words are not {rows} x {columns} integers of 4 bits")
    if stored.order == "column":
        codes = _nibbles(words.T)
    else:
        codes = _nibbles(words) if by_row else _awq(words)
    zeros = torch.full_like(scales, 8, dtype=torch.uint8, memory_format=torch.contiguous_format)
    if isinstance(getattr(module, stored.zeros, None), torch.Tensor):
        zero_words = parameter(module, stored.zeros)
        zeros = _nibbles(zero_words.T).T if by_row else _awq(zero_words)
    group = -(-columns // scales.shape[1])
    return Int4Groups(pack_nibbles(codes), scales.contiguous(), zeros.contiguous(), group)


def _nibbles(words: torch.Tensor) -> torch.Tensor:
    """Eight integers of each int32 [N, K / 8], the lowest bits first: uint8 [N, K]."""
    shifts = 4 * torch.arange(8, device=words.device)
    return (words.unsqueeze(-1) >> shifts & 15).to(torch.uint8).flatten(1)


def _awq(words: torch.Tensor) -> torch.Tensor:
    """The same of int32 [K, N / 8], whose words have integers 0, 2, 4, 6, 1, 3, 5, 7: [N, K]."""
    places = torch.tensor([0, 4, 1, 5, 2, 6, 3, 7], device=words.device)
    return _nibbles(words).unflatten(1, (-1, 8))[..., places].flatten(1).T


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


ROUTERS = ("FusedTopKRouter", "FusedTopKBiasRouter", "GroupedTopKRouter", "CPURouter")
"""vLLM's classes whose choice is that of `kernels.routing.route`; `CPURouter` exists since 0.31."""

_REFUSED = (
    ("eplb_state", "its experts are balanced over ranks (EPLB)"),
    ("custom_routing_function", "it routes by a function of the model's own"),
    ("_hash_indices_table", "it routes by a hash of the token"),
    ("bias_vl", "it has another correction for images"),
    ("num_fused_shared_experts", "shared experts are fused into its choice"),
)
"""What a router may have that `route` has not."""


def read_router(name: str, runner: Any) -> RouterLayer:
    """Reads the router of a vLLM `MoERunner`."""
    router = runner.router
    kind = type(router).__name__
    if kind not in ROUTERS:
        raise KernelError(f"{kind} chooses experts in a way that the kernels do not know")
    for attribute, reason in _REFUSED:
        value = getattr(router, attribute, None)
        if isinstance(value, torch.Tensor) or value:
            raise KernelError(reason)
    if getattr(runner, "_fse_fuse_gate", False):
        raise KernelError("its logits hold those of the shared expert's gate")
    grouped = kind == "GroupedTopKRouter" or getattr(router, "use_grouped_topk", False)
    if grouped and max(router.num_expert_group or 1, router.topk_group or 1) > 1:
        raise KernelError(f"it chooses among {router.num_expert_group} groups of experts")
    if router.scoring_func not in ("softmax", "sigmoid"):
        raise KernelError(f"its scores are {router.scoring_func}, neither softmax nor sigmoids")
    correction, scale = None, 1.0
    # The other two ignore both: a model of theirs scales the result of its experts itself.
    if grouped or kind == "FusedTopKBiasRouter":
        correction = _correction(router)
        scale = float(router.routed_scaling_factor)
    return RouterLayer(
        name=name,
        experts=int(router.global_num_experts),
        top_k=int(router.top_k),
        renormalize=bool(router.renormalize),
        scoring=router.scoring_func,
        correction=correction,
        scale=scale,
    )


def _correction(router: Any) -> torch.Tensor | None:
    if router.e_score_correction_bias is None:
        return None
    if router.scoring_func != "sigmoid":
        raise KernelError("it corrects a softmax; the kernels correct sigmoids only")
    value: torch.Tensor = router.e_score_correction_bias.detach()
    return value.to(torch.float32).contiguous()


def read_layer(name: str, module: Any, slot: str) -> Layer:
    """Reads what fills a slot. Its tensors may be the module's own: pack them, do not write.

    The slot moe has a `MoERunner`, router that or the matrix before it. Parameters hold the bits of
    the checkpoint: `process_weights_after_loading` has not been called. A KernelError says in one
    line why no kernel can be built for it.
    """
    if slot == "router" and hasattr(module, "router"):
        return read_router(name, module)
    if slot == "norm":
        return read_norm(name, module)
    check_layout()
    return read_experts(name, module) if slot == "moe" else read_linear(name, module, slot)


def check_layout() -> None:
    """Refuses weights out of vLLM's cache (since 0.31), which have the names of raw ones."""
    utils = sys.modules.get("vllm.model_executor.utils")
    if getattr(utils, "is_weights_pre_processed", lambda: False)():
        raise KernelError("its weights come from vLLM's cache, laid out for a kernel of vLLM's")


def read_norm(name: str, module: Any) -> NormLayer:
    """Reads an RMS norm."""
    kind = type(module).__name__
    if kind not in ("RMSNorm", "GemmaRMSNorm"):
        raise KernelError(f"{kind} is no plain RMS norm")
    if getattr(module, "variance_size_override", None) is not None:
        raise KernelError("its variance is that of some of the features only")
    weight: torch.Tensor = module.weight.detach()
    if kind == "GemmaRMSNorm":
        weight = weight.to(torch.float32) + 1  # as it is multiplied with, in float32
    return NormLayer(name, weight, float(module.variance_epsilon))


_BLOCKS = {"plain": 1, "fp8": 1, "nvfp4": 16, "mxfp4": 32}

_REFUSED_EXPERTS = (
    (
        "moe_config.moe_parallel_config.use_ep",
        "its experts are spread over ranks (expert parallel)",
    ),
    ("moe_config.moe_parallel_config.enable_eplb", "its experts are balanced over ranks (EPLB)"),
    (
        "moe_config.moe_parallel_config.is_sequence_parallel",
        "its tokens are spread over ranks (sequence parallel)",
    ),
    ("moe_config.is_lora_enabled", "its engine takes LoRA adapters"),
    ("apply_router_weight_on_input", "it weighs what goes into its experts"),
)
"""What a layer may do that the kernels do not."""


@dataclass(frozen=True)
class Extent:
    """How much of the parameters of experts is theirs; vLLM pads them for some kernels."""

    hidden: int
    intermediate: int
    halves: int  # 2 with a gate, else 1
    turns: bool  # whether rows of gate and of up take turns, as in gpt-oss's checkpoints


def extent_of(module: Any, stored: StoredAs) -> Extent:
    """What of its parameters is a `RoutedExperts`' own, before it is filled or after.

    Each loader of vLLM has its own way to divide an intermediate size among ranks, but where all
    are equal whole blocks they agree.
    """
    config = module.moe_config
    halves = 2 if module.activation.is_gated else 1
    padded = parameter(module, f"w13_{stored.weight}").shape[1] // halves
    block = _BLOCKS[stored.format]
    unpadded = config.intermediate_size_per_partition_unpadded
    intermediate = min(padded, -(-unpadded // block) * block)
    hidden = min(config.hidden_dim, config.hidden_dim_unpadded or config.hidden_dim)
    return Extent(hidden, intermediate, halves, module.activation.value == "swigluoai")


def _filled_extent(module: Any, stored: StoredAs) -> Extent:
    """As `extent_of`, but all columns of down where a loader has put a rank's into its padding."""
    extent = extent_of(module, stored)
    down = parameter(module, f"w2_{stored.weight}")
    per_item = 2 if down.dtype == torch.uint8 else 1
    padding = down[:, :, extent.intermediate // per_item :]
    if module.moe_config.tp_size == 1 or not bool(padding.contiguous().view(torch.uint8).any()):
        return extent
    return replace(extent, intermediate=down.shape[2] * per_item)


def read_experts(name: str, runner: Any) -> ExpertsLayer:
    """Reads the experts of a vLLM `MoERunner`, of this rank, and its router."""
    module = runner.routed_experts
    router = read_router(name, runner)
    _refuse(module)
    stored = stored_as(module, EXPERTS)
    activation = _activation(module)
    extent = _filled_extent(module, stored)
    gate_up = _matrices(module, stored, extent, "w13")
    down = _matrices(module, stored, extent, "w2")
    if gate_up.shape[0] != router.experts:
        raise KernelError(f"it has {gate_up.shape[0]} of {router.experts} experts on this rank")
    gate_up_bias, down_bias = (getattr(module, f"{half}_bias", None) for half in ("w13", "w2"))
    if gate_up_bias is not None:
        gate_up_bias = _gate_up(gate_up_bias.detach(), extent).contiguous()
    if down_bias is not None:
        down_bias = down_bias.detach()[:, : extent.hidden].contiguous()
    # Other kernels of vLLM than Triton's take BF16 weights in an order of their own.
    backend = getattr(getattr(module.quant_method, "unquantized_backend", None), "name", "")
    stays = backend in ("TRITON", "BATCHED_TRITON")
    return ExpertsLayer(name, gate_up, down, gate_up_bias, down_bias, activation, router, stays)


def _refuse(module: Any) -> None:
    for path, reason in _REFUSED_EXPERTS:
        value = module
        for part in path.split("."):
            value = getattr(value, part, None)
        if value:
            raise KernelError(reason)
    if module.moe_config.dp_size > 1 or module.moe_config.pcp_size > 1:
        raise KernelError("its tokens come from several engines (data parallel)")
    if getattr(module, "_expert_map", None) is not None:
        raise KernelError("its experts are numbered anew on this rank")


def _activation(module: Any) -> Activation:
    """What joins gate and up; gpt-oss's figures are vLLM's own where a layer has none."""
    name = module.activation.value
    limit, alpha, beta = (
        getattr(module, f"swiglu_{part}", None) for part in ("limit", "alpha", "beta")
    )
    if name == "silu" and limit is None:
        return Activation("silu")
    if name == "relu2_no_mul":
        return Activation("relu2")
    if name == "swigluoai" and beta in (None, 1.0):
        default = Activation("swiglu")
        return Activation("swiglu", alpha or default.alpha, limit or default.limit)
    if name == "swigluoai_uninterleave" and alpha and limit and beta == 1.0:
        return Activation("swiglu", alpha, limit)
    raise KernelError(
        f"its activation is {name} with limit {limit}, alpha {alpha} and beta {beta}; silu,"
        " gpt-oss's swiglu and relu2 without a gate are known"
    )


def _matrices(
    module: Any, stored: StoredAs, extent: Extent, half: str
) -> QuantizedWeight | torch.Tensor:
    weight = parameter(module, f"{half}_{stored.weight}")
    if stored.format == "plain":
        return _cut(weight, extent, half, 1)
    if stored.format == "fp8":
        return _fp8_experts(module, stored, extent, half)
    packed = _cut(weight, extent, half, 2)
    scale = parameter(module, f"{half}_{stored.scale}")
    scales = _cut(scale, extent, half, _BLOCKS[stored.format])
    if stored.format == "mxfp4":
        return MxFp4(packed, scales)
    scale_name = f"{half}_{stored.global_scale}"
    value = check_scale(parameter(module, scale_name), scale_name)
    if half == "w2":
        return NvFp4(packed, scales, GlobalScale(value.reshape(-1, 1, 1), stored.convention))
    value = value.reshape(packed.shape[0], -1)
    _refuse_turns(value, extent, scale_name)
    shards = value.shape[1]
    rows = [extent.halves * extent.intermediate // shards] * shards
    return NvFp4(packed, scales, GlobalScale.of_shards(value, rows, stored.convention))


def _fp8_experts(module: Any, stored: StoredAs, extent: Extent, half: str) -> QuantizedWeight:
    values = _cut(parameter(module, f"{half}_{stored.weight}"), extent, half, 1)
    scale_name = f"{half}_{stored.scale}"
    scale = check_scale(scales_of(module, stored, f"{half}_"), scale_name)
    if getattr(module, "weight_block_size", None) is not None:
        if extent.turns or extent.intermediate % FP8_BLOCK:
            raise KernelError("blocks of its FP8 scales have rows of both gate and up")
        blocks = replace(extent, intermediate=extent.intermediate // FP8_BLOCK)
        blocks = replace(blocks, hidden=-(-extent.hidden // FP8_BLOCK))
        return Fp8Blocks(values, _cut(scale, blocks, half, 1))
    if scale.ndim == 3:  # of rows
        scale = _gate_up(scale, extent) if half == "w13" else scale[:, : extent.hidden]
        return Fp8Rows(values, scale.squeeze(-1).contiguous())
    scale = scale.reshape(len(values), -1)
    _refuse_turns(scale, extent, scale_name)
    return Fp8Rows(values, scale.repeat_interleave(values.shape[1] // scale.shape[1], 1))


def _refuse_turns(of_shards: torch.Tensor, extent: Extent, scale_name: str) -> None:
    if extent.turns and bool((of_shards != of_shards[:, :1]).any()):
        raise KernelError(f"its {scale_name} differs between gate and up, whose rows take turns")


def _cut(values: torch.Tensor, extent: Extent, half: str, per_item: int) -> torch.Tensor:
    """Weights or scales [E, N, K / per_item] without padding, gate before up."""
    if half == "w13":
        return _gate_up(values, extent)[..., : extent.hidden // per_item]
    return values[:, : extent.hidden, : extent.intermediate // per_item]


def _gate_up(values: torch.Tensor, extent: Extent) -> torch.Tensor:
    """Without padding, gate before up; a view where nothing has to move."""
    if extent.turns:
        pairs = values.unflatten(1, (-1, 2))[:, : extent.intermediate].transpose(1, 2)
    else:
        pairs = values.unflatten(1, (extent.halves, -1))[:, :, : extent.intermediate]
    return pairs.flatten(1, 2)

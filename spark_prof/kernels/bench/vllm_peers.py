"""Kernels of vLLM for matrices and experts as competitors, prepared and called as 0.26 to 0.33 do.

Its sources: `vllm/model_executor/kernels/linear/{nvfp4,mxfp4}/marlin.py` and
`vllm/model_executor/layers/quantization/utils/marlin_utils_{fp4,fp8}.py` for a dense layer;
`vllm/model_executor/layers/fused_moe/oracle/{mxfp4,nvfp4}.py` choose and prepare experts,
`experts/marlin_moe.py` and `experts/gpt_oss_triton_kernels_moe.py` call. On Hopper it takes for
gpt-oss Triton, then Marlin; for NVFP4 Marlin.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import torch

from spark_prof.kernels.bench.race import clones
from spark_prof.kernels.candidate import ExpertsLayer
from spark_prof.kernels.check.inputs import Weight
from spark_prof.kernels.formats import (
    Fp8Blocks,
    Fp8Rows,
    MxFp4,
    NvFp4,
    interleave_gate_up,
    interleave_rows,
)
from spark_prof.kernels.kernel_error import KernelError

Multiply = Callable[[torch.Tensor, int], torch.Tensor]
"""Multiplies x [M, K] by the copy of the weight of that number."""

MixExperts = Callable[[torch.Tensor, torch.Tensor, int], torch.Tensor]
"""Mixes what the copy of the experts of that number makes of x [M, H], by logits [M, E]."""

_MARLIN_HIDDEN, _MARLIN_INNER = 256, 128
"""What vLLM pads gpt-oss to for Marlin: `mxfp4_round_up_hidden_size_and_intermediate_size`."""


_MOST_EXPERTS = 1024
_MOST_ROWS = 16384
_DSV3_ROUTERS = ((256, 7168), (384, 7168), (256, 6144))
"""Experts and columns for which vLLM's kernel is compiled: `GateLinear.DSV3_SUPPORTED_*`."""
_DSV3_PROJECTION = (2112, 7168)


def small_products(
    weight: torch.Tensor, *, gate: bool = True
) -> Mapping[str, Callable[[Any, int], Multiply]]:
    """Kernels for few tokens that take a BF16 weight of that shape; vLLM has them for routers.

    Its `GateLinear` goes through them on compute capability 9.0 and 10.x where the router has no
    bias and logits are float32. gpt-oss's router has a bias, and in 0.26 is no `GateLinear`.

    Args:
        gate: whether the weight is that of such a router: vLLM calls the first for no other.
    """
    rows, columns = shape = tuple(weight.shape)
    products: dict[str, Callable[[Any, int], Multiply]] = {}
    if gate and rows <= _MOST_EXPERTS and columns % 8 == 0:
        products["vLLM ll_bf16"] = _ll_bf16
    if shape in _DSV3_ROUTERS or shape == _DSV3_PROJECTION:
        products["vLLM DSV3"] = _dsv3
    if rows < _MOST_ROWS and rows % 16 == 0 and columns % 64 == 0:
        products["FlashInfer tinygemm"] = _tinygemm
    return products


def _ll_bf16(weight: torch.Tensor, copies: int) -> Multiply:
    _refuse_cpu(weight)
    from vllm.model_executor.kernels.linear.cute_dsl.ll_bf16 import is_available, ll_bf16_gemm

    if not is_available():
        raise KernelError("CUTLASS's Python package, which it is written with, is not installed")
    weights = clones(weight, copies)
    # Its logits are float32.
    return lambda x, number: ll_bf16_gemm(x, weights[number])


def _dsv3(weight: torch.Tensor, copies: int) -> Multiply:
    _refuse_cpu(weight)
    import vllm._custom_ops as ops

    name = "dsv3_router_gemm" if tuple(weight.shape) in _DSV3_ROUTERS else "dsv3_fused_a_gemm"
    if not hasattr(ops, name):
        raise KernelError(f"this vLLM has no {name}")
    weights = clones(weight, copies)
    if tuple(weight.shape) in _DSV3_ROUTERS:
        return lambda x, number: ops.dsv3_router_gemm(x, weights[number], torch.float32)

    def project(x: torch.Tensor, number: int) -> torch.Tensor:
        out = x.new_empty((len(x), len(weight)))
        ops.dsv3_fused_a_gemm(out, x, weights[number].T)
        return out

    return project


def _tinygemm(weight: torch.Tensor, copies: int) -> Multiply:
    _refuse_cpu(weight)
    try:
        from flashinfer.gemm import tinygemm_bf16  # type: ignore[import-not-found]
    except ImportError as error:
        raise KernelError("FlashInfer, from 0.6.4 on, is not installed") from error
    weights = clones(weight, copies)

    def multiply(x: torch.Tensor, number: int) -> torch.Tensor:
        out = x.new_empty((len(x), len(weight)))
        tinygemm_bf16(x, weights[number], out)
        return out

    return multiply


def _refuse_cpu(weight: torch.Tensor) -> None:
    """Before vLLM is imported, which takes long."""
    if weight.device.type != "cuda":
        raise KernelError("it runs on GPUs alone")


def marlin(weight: Weight, copies: int) -> Multiply:
    """Marlin multiplying by copies of a weight."""
    if isinstance(weight, torch.Tensor):
        raise KernelError("Marlin multiplies by weights of fewer bits than BF16")
    if isinstance(weight, Fp8Blocks):
        raise KernelError("Marlin is given no FP8 weights with scales of blocks here")
    import vllm._custom_ops  # noqa: F401 - loads its kernels

    if isinstance(weight, Fp8Rows):
        from vllm.model_executor.layers.quantization.utils.marlin_utils_fp8 import (
            apply_fp8_marlin_linear as apply,
        )
        from vllm.model_executor.layers.quantization.utils.marlin_utils_fp8 import (
            prepare_fp8_layer_for_marlin,
        )

        prepared = _dense_layer(weight.values, weight.scales.unsqueeze(-1), weight.shape)
        prepared.orig_dtype = torch.bfloat16
        prepare_fp8_layer_for_marlin(prepared, size_k_first=False)
    else:
        from vllm.model_executor.layers.quantization.utils.marlin_utils_fp4 import (
            apply_fp4_marlin_linear as apply,
        )
        from vllm.model_executor.layers.quantization.utils.marlin_utils_fp4 import (
            prepare_fp4_layer_for_marlin,
        )

        assert isinstance(weight, NvFp4 | MxFp4)
        prepared = _dense_layer(weight.packed, weight.scales, weight.shape)
        if isinstance(weight, NvFp4):
            # vLLM turns compressed-tensors' divisors round when it reads them.
            prepared.weight_global_scale = _parameter(weight.global_scale.multiplier(torch.float32))
        prepare_fp4_layer_for_marlin(prepared)
    layers: list[Any] = clones(prepared, copies)
    is_fp4 = not isinstance(weight, Fp8Rows)

    def multiply(x: torch.Tensor, number: int) -> torch.Tensor:
        layer = layers[number]
        scale = {"weight_global_scale": getattr(layer, "weight_global_scale", None)}
        out: torch.Tensor = apply(
            input=x,
            weight=layer.weight,
            weight_scale=layer.weight_scale,
            # From 0.33 on vLLM makes it in the call.
            workspace=getattr(layer, "workspace", None),
            size_n=layer.output_size_per_partition,
            size_k=layer.input_size_per_partition,
            bias=None,
            **(scale if is_fp4 else {}),
        )
        return out

    return multiply


def _dense_layer(weight: torch.Tensor, scales: torch.Tensor, shape: torch.Size) -> Any:
    """A module with the attributes of vLLM's linear layer after its checkpoint was read."""
    layer: Any = torch.nn.Module()
    layer.output_size_per_partition, layer.input_size_per_partition = shape
    layer.params_dtype = torch.bfloat16
    layer.weight = _parameter(weight)
    layer.weight_scale = _parameter(scales)
    return layer


def _parameter(values: torch.Tensor) -> torch.nn.Parameter:
    return torch.nn.Parameter(values.clone(), requires_grad=False)


def marlin_experts(weights: ExpertsLayer, copies: int) -> MixExperts:
    """Marlin's products for experts, with the routing and summing kernels around them."""
    if isinstance(weights.gate_up, torch.Tensor):
        raise KernelError("Marlin multiplies by weights of fewer bits than BF16")
    import vllm._custom_ops as ops
    from vllm.model_executor.layers.fused_moe.activation import MoEActivation
    from vllm.model_executor.layers.fused_moe.experts.marlin_moe import fused_marlin_moe
    from vllm.model_executor.layers.fused_moe.router.fused_topk_router import fused_topk
    from vllm.scalar_type import scalar_types

    experts, own_hidden, inner = weights.down.shape
    hidden, top_k = own_hidden, weights.router.top_k
    if isinstance(weights.gate_up, NvFp4):
        prepared = _marlin_nvfp4(weights)
    else:
        hidden = -(-hidden // _MARLIN_HIDDEN) * _MARLIN_HIDDEN
        inner = -(-inner // _MARLIN_INNER) * _MARLIN_INNER
        prepared = _marlin_mxfp4(weights, hidden, inner)
    layers = clones(prepared, copies)
    gpt_oss = weights.activation.name == "swiglu"
    activation = MoEActivation.SWIGLUOAI if gpt_oss else MoEActivation.SILU
    scratch: dict[int, tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = {}

    def add_up(products: torch.Tensor, out: torch.Tensor, *_: object) -> None:
        ops.moe_sum(products, out)

    def mix(x: torch.Tensor, logits: torch.Tensor, number: int) -> torch.Tensor:
        layer = layers[number]
        w13, w13_scales, w13_global, w13_bias = layer.gate_up
        w2, w2_scales, w2_global, w2_bias = layer.down
        pairs = len(x) * top_k
        if pairs not in scratch:
            # vLLM has the first two in a workspace that all layers share.
            scratch[pairs] = (
                x.new_empty(pairs * max(2 * inner, hidden)),
                x.new_empty((pairs, max(inner, hidden))),
                x.new_zeros((len(x), hidden)),
            )
        if hidden != own_hidden:
            # torch.compile makes one kernel of vLLM's padding; this is one too.
            padded = scratch[pairs][2]
            padded[:, :own_hidden].copy_(x)
            x = padded
        shares, chosen, _ = fused_topk(x, logits, top_k, renormalize=True)
        out = torch.empty_like(x)
        fused_marlin_moe(
            hidden_states=x,
            w1=w13,
            w2=w2,
            bias1=w13_bias,
            bias2=w2_bias,
            w1_scale=w13_scales,
            w2_scale=w2_scales,
            topk_weights=shares,
            topk_ids=chosen,
            quant_type_id=scalar_types.float4_e2m1f.id,
            global_num_experts=experts,
            activation=activation,
            moe_sum=add_up,
            global_scale1=w13_global,
            global_scale2=w2_global,
            intermediate_cache13=scratch[pairs][0],
            intermediate_cache2=scratch[pairs][1],
            output=out,
        )
        return out[:, :own_hidden]

    return mix


def _marlin_nvfp4(weights: ExpertsLayer) -> SimpleNamespace:
    from vllm.model_executor.layers.quantization.utils.marlin_utils_fp4 import (
        prepare_nvfp4_moe_layer_for_marlin,
    )

    gate_up, down = weights.gate_up, weights.down
    if not (isinstance(gate_up, NvFp4) and isinstance(down, NvFp4)):
        raise TypeError("gate and up are NVFP4, down is not")
    experts, hidden, inner = down.shape
    layer = SimpleNamespace(
        num_experts=experts,
        hidden_size=hidden,
        intermediate_size_per_partition=inner,
        params_dtype=torch.bfloat16,
    )
    w13, w13_scales, w13_global, w2, w2_scales, w2_global = prepare_nvfp4_moe_layer_for_marlin(
        layer,
        gate_up.packed,
        gate_up.scales,
        gate_up.global_scale.multiplier(torch.float32).flatten(),
        down.packed,
        down.scales,
        down.global_scale.multiplier(torch.float32).flatten(),
        is_act_and_mul=True,
    )
    return SimpleNamespace(
        gate_up=(w13, w13_scales, w13_global, None), down=(w2, w2_scales, w2_global, None)
    )


def _marlin_mxfp4(weights: ExpertsLayer, hidden: int, inner: int) -> SimpleNamespace:
    from vllm.model_executor.layers.quantization.utils.marlin_utils_fp4 import (
        prepare_moe_mxfp4_layer_for_marlin,
    )

    gate_up, gate_up_bias, down = _as_in_checkpoint(weights)
    down_bias = weights.down_bias
    w13, w2, w13_scales, w2_scales, w13_bias, w2_bias = prepare_moe_mxfp4_layer_for_marlin(
        SimpleNamespace(params_dtype=torch.bfloat16),
        _padded(gate_up.packed, 2 * inner, hidden // 2),
        _padded(down.packed, hidden, inner // 2),
        _padded(gate_up.scales, 2 * inner, hidden // 32),
        _padded(down.scales, hidden, inner // 32),
        None if gate_up_bias is None else _padded(gate_up_bias, len(gate_up_bias), 2 * inner),
        None if down_bias is None else _padded(down_bias, len(down_bias), hidden),
    )
    return SimpleNamespace(
        gate_up=(w13, w13_scales, None, w13_bias), down=(w2, w2_scales, None, w2_bias)
    )


def triton_experts(weights: ExpertsLayer, copies: int) -> MixExperts:
    """The Triton kernels of gpt-oss, their routing among them, or those of experts in BF16."""
    activation = weights.activation.name
    if isinstance(weights.gate_up, torch.Tensor) and activation == "silu":
        return _triton_bf16(weights, copies)
    if not isinstance(weights.gate_up, MxFp4) or activation != "swiglu":
        form = {MxFp4: "mxfp4", NvFp4: "nvfp4"}.get(type(weights.gate_up), "bf16")
        raise ValueError(f"computes MXFP4 with SwiGLU only, not {form}, {activation}")
    from vllm.model_executor.layers.fused_moe.config import mxfp4_w4a16_moe_quant_config
    from vllm.model_executor.layers.fused_moe.experts.gpt_oss_triton_kernels_moe import (
        triton_kernel_moe_forward,
    )
    from vllm.model_executor.layers.quantization.utils.mxfp4_utils import _swizzle_mxfp4

    # An alias that vLLM makes of its own copy.
    from triton_kernels.matmul_ogs import (  # type: ignore[import-not-found]  # isort: skip
        FlexCtx,
        PrecisionConfig,
    )

    gate_up, gate_up_bias, down = _as_in_checkpoint(weights)

    def prepared() -> tuple[Any, Any, Any]:
        w13, w13_flex, w13_scales = _swizzle_mxfp4(gate_up.packed.clone(), gate_up.scales.clone())
        w2, w2_flex, w2_scales = _swizzle_mxfp4(down.packed.clone(), down.scales.clone())
        config = mxfp4_w4a16_moe_quant_config(
            w1_scale=PrecisionConfig(weight_scale=w13_scales, flex_ctx=FlexCtx(rhs_data=w13_flex)),
            w2_scale=PrecisionConfig(weight_scale=w2_scales, flex_ctx=FlexCtx(rhs_data=w2_flex)),
            w1_bias=None if gate_up_bias is None else gate_up_bias.to(torch.float32),
            w2_bias=None if weights.down_bias is None else weights.down_bias.to(torch.float32),
        )
        return w13, w2, config

    layers = [prepared() for _ in range(copies)]

    def mix(x: torch.Tensor, logits: torch.Tensor, number: int) -> torch.Tensor:
        w13, w2, config = layers[number]
        out: torch.Tensor = triton_kernel_moe_forward(
            hidden_states=x,
            w1=w13,
            w2=w2,
            gating_output=logits,
            topk=weights.router.top_k,
            renormalize=True,
            quant_config=config,
            global_num_experts=weights.router.experts,
        )
        return out

    return mix


def _triton_bf16(weights: ExpertsLayer, copies: int) -> MixExperts:
    assert isinstance(weights.gate_up, torch.Tensor)
    _refuse_cpu(weights.gate_up)
    from vllm.model_executor.layers.fused_moe.fused_moe import fused_experts
    from vllm.model_executor.layers.fused_moe.router.fused_topk_router import fused_topk

    layers = clones((weights.gate_up, weights.down), copies)
    router = weights.router

    def mix(x: torch.Tensor, logits: torch.Tensor, number: int) -> torch.Tensor:
        shares, chosen, _ = fused_topk(x, logits, router.top_k, renormalize=True)
        out: torch.Tensor = fused_experts(
            x, *layers[number], shares, chosen, global_num_experts=router.experts
        )
        return out

    return mix


def _as_in_checkpoint(weights: ExpertsLayer) -> tuple[MxFp4, torch.Tensor | None, MxFp4]:
    """Gate and up in turns, as gpt-oss stores them and vLLM leaves them; the bias too; down."""
    if not (isinstance(weights.gate_up, MxFp4) and isinstance(weights.down, MxFp4)):
        raise TypeError("not MXFP4")
    bias = weights.gate_up_bias
    bias = None if bias is None else interleave_rows(bias)
    return interleave_gate_up(weights.gate_up), bias, weights.down


def _padded(values: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
    """Zeros to the right and below."""
    right, below = columns - values.shape[-1], rows - values.shape[-2]
    return torch.nn.functional.pad(values, (0, right, 0, below))

"""Humming's kernels for experts as a competitor, prepared and called as vLLM 0.33 does.

On Hopper vLLM takes them before Marlin from 0.32 on. Its sources, read in 0.33.0:
`vllm/model_executor/layers/fused_moe/oracle/{nvfp4,mxfp4}.py` and
`vllm/model_executor/layers/quantization/utils/humming/moe.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from importlib import import_module
from typing import Any

import torch

from spark_prof.kernels.bench.vllm_linear import is_on_gpu
from spark_prof.kernels.candidate import ExpertsLayer
from spark_prof.kernels.formats import MxFp4, NvFp4, interleave_gate_up, interleave_rows
from spark_prof.kernels.kernel_error import KernelError

MixExperts = Callable[[torch.Tensor, torch.Tensor, int], torch.Tensor]

_LAYERS = "vllm.model_executor.layers"
_NVFP4 = {"quant_method": "modelopt", "quant_algo": "nvfp4"}
_MXFP4 = {"quant_method": "gpt_oss_mxfp4"}


def humming_experts(weights: ExpertsLayer, copies: int) -> MixExperts:
    """Humming's products for experts, with vLLM's routing before them."""
    if not isinstance(weights.gate_up, NvFp4 | MxFp4):
        raise KernelError("here Humming is given experts in NVFP4 and MXFP4 alone")
    if not is_on_gpu(weights.gate_up):  # before vLLM is imported, which takes long
        raise KernelError("it runs on GPUs alone")
    humming = _module("quantization.utils.humming")
    fused_topk = _module("fused_moe.router.fused_topk_router").fused_topk
    config = moe_config(weights)
    keys = _module("quantization.utils.quant_utils")
    is_nvfp4 = isinstance(weights.gate_up, NvFp4)
    key = keys.kNvfp4Static if is_nvfp4 else keys.kMxfp4Static
    experts_class = humming.select_humming_moe_experts(config, key, None)
    if experts_class is None:
        raise KernelError("Humming is not installed, or has no experts for this GPU")
    limits = {"gemm1_alpha": 1.702, "gemm1_beta": 1.0, "gemm1_clamp_limit": 7.0}
    in_a_step = step_context(weights.gate_up.packed.device)
    kernels = []
    for _ in range(copies):
        layer = layer_of_experts(weights, config)
        humming.convert_to_humming_moe_kernel_format(
            layer, quant_config=dict(_NVFP4 if is_nvfp4 else _MXFP4)
        )
        swiglu = limits if weights.activation.name == "swiglu" else {}
        quant = humming.get_humming_moe_quant_config(layer, **swiglu)
        kernels.append((humming.make_humming_moe_kernel(quant, config, experts_class), layer))

    def mix(x: torch.Tensor, logits: torch.Tensor, number: int) -> torch.Tensor:
        kernel, layer = kernels[number]
        shares, chosen, _ = fused_topk(x, logits, weights.router.top_k, renormalize=True)
        with in_a_step():
            out: torch.Tensor = kernel.apply(
                hidden_states=x,
                w1=layer.w13_weight,
                w2=layer.w2_weight,
                topk_ids=chosen,
                topk_weights=shares,
                activation=config.activation,
                global_num_experts=weights.router.experts,
                expert_map=None,
                apply_router_weight_on_input=False,
            )
        return out

    return mix


def step_context(device: torch.device) -> Callable[[], AbstractContextManager[None]]:
    """What vLLM's runner has around a step: scratch memory, made once, and a forward's context.

    Experts take the one and ask the other whether there are more ranks.
    """
    workspace = _module("v1.worker.workspace", below="vllm")
    if not workspace.is_workspace_manager_initialized():
        workspace.init_workspace_manager(device)
    forward = _module("forward_context", below="vllm")
    context = forward.ForwardContext(no_compile_layers={}, attn_metadata={}, slot_mapping={})
    return partial(forward.override_forward_context, context)


def moe_config(weights: ExpertsLayer) -> Any:
    """The FusedMoEConfig of those experts on one GPU."""
    config = _module("fused_moe.config")
    activation = _module("fused_moe.activation").MoEActivation
    experts, hidden, inner = weights.down.shape
    gpt_oss = weights.activation.name == "swiglu"
    return config.FusedMoEConfig(
        num_experts=experts,
        experts_per_token=weights.router.top_k,
        hidden_dim=hidden,
        intermediate_size=inner,
        num_local_experts=experts,
        num_logical_experts=experts,
        activation=activation.SWIGLUOAI if gpt_oss else activation.SILU,
        device=torch.device("cuda"),
        routing_method=config.RoutingMethodType.Renormalize,
        moe_parallel_config=config.FusedMoEParallelConfig.make_no_parallel(),
        in_dtype=torch.bfloat16,
        has_bias=weights.gate_up_bias is not None,
    )


def layer_of_experts(weights: ExpertsLayer, config: Any) -> Any:
    """A module with what vLLM's RoutedExperts has after its checkpoint was read."""
    layer: Any = torch.nn.Module()
    layer.moe_config, layer.params_dtype = config, torch.bfloat16
    layer.layer_name = "experts"
    gate_up, down = weights.gate_up, weights.down
    if isinstance(gate_up, NvFp4) and isinstance(down, NvFp4):
        for name, part in (("w13", gate_up), ("w2", down)):
            setattr(layer, f"{name}_weight", _parameter(part.packed))
            setattr(layer, f"{name}_weight_scale", _parameter(part.scales))
            scale = part.global_scale.multiplier(torch.float32).flatten()
            # ModelOpt keeps one for gate and one for up.
            scale = torch.stack([scale, scale], dim=1) if name == "w13" else scale
            setattr(layer, f"{name}_weight_scale_2", _parameter(scale))
        return layer
    if not (isinstance(gate_up, MxFp4) and isinstance(down, MxFp4)):
        raise TypeError("gate and up are of another format than down")
    # Gate and up in turns, as gpt-oss stores them and vLLM leaves them.
    for name, stored in (("w13", interleave_gate_up(gate_up)), ("w2", down)):
        setattr(layer, f"{name}_weight", _parameter(stored.packed))
        setattr(layer, f"{name}_weight_scale", _parameter(stored.scales))
    bias = weights.gate_up_bias
    if bias is not None and weights.down_bias is not None:
        layer.w13_bias, layer.w2_bias = map(_parameter, (interleave_rows(bias), weights.down_bias))
    return layer


def _module(name: str, below: str = _LAYERS) -> Any:
    try:
        return import_module(f"{below}.{name}")
    except ImportError as error:
        raise KernelError(
            f"vLLM's {name} cannot be imported: {error}; it is of vLLM 0.33 with humming-kernels"
        ) from error


def _parameter(values: torch.Tensor) -> torch.nn.Parameter:
    return torch.nn.Parameter(values.clone(), requires_grad=False)

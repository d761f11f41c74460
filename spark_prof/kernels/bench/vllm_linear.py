"""vLLM's dense kernels as competitors, through the classes that its own linear layers use.

From vLLM 0.28 on each backend of a linear layer is a class with `is_supported`,
`process_weights_after_loading` and `apply_weights` (`vllm/model_executor/kernels/linear`, read in
0.33.0). A competitor is such a class on a layer as the checkpoint's scheme leaves it. One that this
vLLM or this GPU does not have takes part with the reason why not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any

import torch

from spark_prof.kernels.bench.race import clones
from spark_prof.kernels.check.inputs import Weight
from spark_prof.kernels.formats import Fp8Blocks, Fp8Rows, MxFp4, NvFp4
from spark_prof.kernels.kernel_error import KernelError

Multiply = Callable[[torch.Tensor, int], torch.Tensor]
"""Multiplies x [M, K] by the copy of the weight of that number."""

_CONFIG = "vllm.config"
_KERNELS = "vllm.model_executor.kernels.linear"
_QUANT_KEYS = "vllm.model_executor.layers.quantization.utils.quant_utils"
_SKINNY_TOKENS, _ROUTER_TOKENS = 16, 32
_MOST_EXPERTS = 1024


@dataclass(frozen=True)
class LinearPeer:
    """One class of vLLM's.

    Attributes:
        name: of the competitor.
        form: the weights that it multiplies by.
        module: below vllm.model_executor.kernels.linear.
        kernel: the class.
        config: the class of its configuration, beside it in `base` or in `scaled_mm`.
        needs: what has to be installed, for the reason that is told.
    """

    name: str
    form: type[Any]
    module: str
    kernel: str
    config: str
    needs: str


PEERS: tuple[LinearPeer, ...] = (
    LinearPeer("vLLM Humming", NvFp4, "nvfp4.humming", "HummingNvFp4LinearKernel",
               "nvfp4.base.NvFp4LinearLayerConfig", "humming-kernels"),
    LinearPeer("vLLM Humming", MxFp4, "mxfp4.humming", "HummingMxFp4LinearKernel",
               "mxfp4.base.MxFp4LinearLayerConfig", "humming-kernels"),
    LinearPeer("vLLM Humming", Fp8Rows, "scaled_mm.humming", "HummingFP8ScaledMMLinearKernel",
               "scaled_mm.ScaledMMLinearKernel.FP8ScaledMMLinearLayerConfig", "humming-kernels"),
    LinearPeer("vLLM Humming", Fp8Blocks, "scaled_mm.humming", "HummingFP8ScaledMMLinearKernel",
               "scaled_mm.ScaledMMLinearKernel.FP8ScaledMMLinearLayerConfig", "humming-kernels"),
    LinearPeer("vLLM FlashInfer CuTe", NvFp4, "nvfp4.flashinfer",
               "FlashInferCuteDslNvFp4W4A16LinearKernel", "nvfp4.base.NvFp4LinearLayerConfig",
               "flashinfer-python"),
    LinearPeer("vLLM DeepGEMM", Fp8Blocks, "scaled_mm.deep_gemm", "DeepGemmFp8BlockScaledMMKernel",
               "scaled_mm.ScaledMMLinearKernel.FP8ScaledMMLinearLayerConfig", "deep_gemm"),
)  # fmt: skip
"""By the form of the weights, as vLLM 0.33 has them; Marlin is in vllm_peers.py."""


def linear_peers(weight: Weight) -> Mapping[str, Callable[[Any, int], Multiply]]:
    """The classes of vLLM for such weights, by the competitor's name."""
    return {
        peer.name: partial(_multiplying, peer) for peer in PEERS if isinstance(weight, peer.form)
    }


def bf16_peers(
    weight: torch.Tensor, *, gate: bool = True
) -> Mapping[str, Callable[[Any, int], Multiply]]:
    """What vLLM 0.33 has for few tokens with a BF16 weight, beside those of vllm_peers.py.

    Args:
        gate: whether the weight is that of a router without a bias.
    """
    peers: dict[str, Callable[[Any, int], Multiply]] = {"vLLM CuTe skinny": _skinny}
    if gate and len(weight) <= _MOST_EXPERTS:
        peers["vLLM ll_fp32w"] = _router_in_fp32
    return peers


def _multiplying(peer: LinearPeer, weight: Any, copies: int) -> Multiply:
    if not is_on_gpu(weight):  # before vLLM is imported, which takes long
        raise KernelError("it runs on GPUs alone")
    # What quantizes activations to FP8 asks for vLLM's configuration when it is made.
    of_fp8 = isinstance(weight, Fp8Rows | Fp8Blocks)
    with default_config(peer) if of_fp8 else nullcontext():
        kernels = [_kernel_and_layer(peer, weight) for _ in range(copies)]

    def multiply(x: torch.Tensor, number: int) -> torch.Tensor:
        kernel, layer = kernels[number]
        out: torch.Tensor = kernel.apply_weights(layer, x, None)
        return out

    return multiply


def _kernel_and_layer(peer: LinearPeer, weight: Any) -> tuple[Any, Any]:
    """The kernel and its layer, whose weights it has brought into its own order."""
    kernel_class = _attribute(f"{_KERNELS}.{peer.module}.{peer.kernel}", peer)
    supported, why = kernel_class.is_supported()
    if not supported:
        raise KernelError(str(why or f"vLLM says that {peer.kernel} is not supported here"))
    config_class = _attribute(f"{_KERNELS}.{peer.config}", peer)
    if isinstance(weight, Fp8Rows | Fp8Blocks):
        key = "kFp8Static128BlockSym" if isinstance(weight, Fp8Blocks) else "kFp8StaticChannelSym"
        acts = "kFp8Dynamic128Sym" if isinstance(weight, Fp8Blocks) else "kFp8DynamicTokenSym"
        config = config_class(
            weight_quant_key=_attribute(f"{_QUANT_KEYS}.{key}", peer),
            activation_quant_key=_attribute(f"{_QUANT_KEYS}.{acts}", peer),
            weight_shape=tuple(weight.shape),
            input_dtype=torch.bfloat16,
            out_dtype=torch.bfloat16,
        )
    else:
        config = config_class()
    can, why = kernel_class.can_implement(config)
    if not can:
        raise KernelError(str(why or f"{peer.kernel} does not implement this layer"))
    names = ["weight", "weight_scale", "input_scale", "input_scale_ub"]
    # DeepGEMM's class knows its layer's names.
    named = peer.module == "scaled_mm.humming"
    kernel = kernel_class(config, layer_param_names=names) if named else kernel_class(config)
    layer = layer_of_checkpoint(weight)
    kernel.process_weights_after_loading(layer)
    return kernel, layer


def default_config(peer: LinearPeer) -> AbstractContextManager[None]:
    """A context in which vLLM's configuration is the default one."""
    set_config = _attribute(f"{_CONFIG}.set_current_vllm_config", peer)
    context: AbstractContextManager[None] = set_config(_attribute(f"{_CONFIG}.VllmConfig", peer)())
    return context


def layer_of_checkpoint(weight: Any) -> Any:
    """A module with what vLLM's linear layer has after its checkpoint was read."""
    layer: Any = torch.nn.Module()
    rows, columns = weight.shape
    layer.output_size_per_partition, layer.input_size_per_partition = rows, columns
    layer.output_size, layer.input_size = rows, columns
    layer.output_partition_sizes, layer.logical_widths = [rows], [rows]
    layer.params_dtype = layer.orig_dtype = torch.bfloat16
    layer.has_bias, layer.bias = False, None
    if isinstance(weight, NvFp4):
        layer.weight, layer.weight_scale = map(_parameter, (weight.packed, weight.scales))
        # vLLM turns compressed-tensors' divisors round when it reads them.
        layer.weight_global_scale = _parameter(weight.global_scale.multiplier(torch.float32))
    elif isinstance(weight, MxFp4):
        layer.weight, layer.weight_scale = map(_parameter, (weight.packed, weight.scales))
    elif isinstance(weight, Fp8Blocks):
        layer.weight, layer.weight_scale_inv = map(_parameter, (weight.values, weight.scales))
        layer.weight_block_size = [128, 128]
    else:
        layer.weight = _parameter(weight.values)
        layer.weight_scale = _parameter(weight.scales.unsqueeze(-1))
    return layer


def _skinny(weight: torch.Tensor, copies: int) -> Multiply:
    """What DeepSeek V4.1, Kimi K3 and others multiply few tokens with."""
    if not is_on_gpu(weight):
        raise KernelError("it runs on GPUs alone")
    name = f"{_KERNELS}.cute_dsl.skinny_gemm.shape_dynamic_skinny_gemm"
    gemm = _attribute(name, _CUTE)
    if not gemm.is_available():
        raise KernelError("CUTLASS's Python package, which it is written with, is not installed")
    weights = clones(weight, copies)

    def multiply(x: torch.Tensor, number: int) -> torch.Tensor:
        if len(x) > _SKINNY_TOKENS:
            raise KernelError(f"vLLM calls it for at most {_SKINNY_TOKENS} tokens")
        out: torch.Tensor = gemm(x, weights[number])
        return out

    return multiply


def _router_in_fp32(weight: torch.Tensor, copies: int) -> Multiply:
    """What routers with weights in FP32 are multiplied with; it reads twice the bytes of BF16."""
    if not is_on_gpu(weight):
        raise KernelError("it runs on GPUs alone")
    module = f"{_KERNELS}.cute_dsl.ll_fp32w"
    if not _attribute(f"{module}.is_available", _CUTE)():
        raise KernelError("CUTLASS's Python package, which it is written with, is not installed")
    gemm = _attribute(f"{module}.LL_FP32W_GEMM_KERNEL", _CUTE)
    weights = clones(weight.float(), copies)

    def multiply(x: torch.Tensor, number: int) -> torch.Tensor:
        if len(x) > _ROUTER_TOKENS:
            raise KernelError(f"vLLM calls it for at most {_ROUTER_TOKENS} tokens")
        out: torch.Tensor = gemm(x, weights[number])
        return out

    return multiply


_CUTE = LinearPeer("", torch.Tensor, "", "", "", "nvidia-cutlass-dsl")


def _attribute(path: str, peer: LinearPeer) -> Any:
    """What that path names; KernelError where this vLLM has it not, or cannot import it."""
    module, _, name = path.rpartition(".")
    try:
        return getattr(import_module(module), name)
    except ImportError as error:
        raise KernelError(
            f"{name} cannot be imported: {error}; it is of vLLM 0.33 and needs {peer.needs}"
        ) from error
    except AttributeError as error:
        raise KernelError(f"this vLLM has no {name}; 0.33 has") from error


def is_on_gpu(weight: Weight) -> bool:
    """Whether a weight lies on a GPU."""
    stored: Any = weight
    if not isinstance(weight, torch.Tensor):  # which has a method `values`
        stored = getattr(weight, "packed", None)
        stored = getattr(weight, "values", None) if stored is None else stored
    return isinstance(stored, torch.Tensor) and stored.device.type == "cuda"


def _parameter(values: torch.Tensor) -> torch.nn.Parameter:
    return torch.nn.Parameter(values.clone(), requires_grad=False)

"""Reads a layer of a live vLLM model, between the loading of its checkpoint and its new layout."""

from __future__ import annotations

import sys
from typing import Any

import torch

from spark_prof.kernels.errors import KernelError
from spark_prof.swaps.layers import Layer, NormLayer
from spark_prof.swaps.weights_experts import read_experts
from spark_prof.swaps.weights_linear import read_linear
from spark_prof.swaps.weights_router import read_router


def read_layer(name: str, module: Any, slot: str) -> Layer:
    """Reads what fills a slot. Its tensors may be the module's own: pack them, do not write.

    Args:
        name: the module's path in the model.
        module: a torch.nn.Module; for the slot moe a `MoERunner`, for router that or the matrix
            before it. Its parameters hold the bits of the checkpoint:
            `process_weights_after_loading` has not been called.
        slot: a word of `spec.SLOTS`.

    Raises:
        KernelError: it is nothing that a kernel can be built for; one line says why.
    """
    if slot == "router" and hasattr(module, "router"):
        return read_router(name, module)
    if slot == "norm":
        return _read_norm(name, module)
    _check_layout()
    return read_experts(name, module) if slot == "moe" else read_linear(name, module, slot)


def _check_layout() -> None:
    """Refuses weights out of vLLM's cache (since 0.31), which have the names of raw ones."""
    utils = sys.modules.get("vllm.model_executor.utils")
    if getattr(utils, "is_weights_pre_processed", lambda: False)():
        raise KernelError("its weights come from vLLM's cache, laid out for a kernel of vLLM's")


def _read_norm(name: str, module: Any) -> NormLayer:
    kind = type(module).__name__
    if kind not in ("RMSNorm", "GemmaRMSNorm"):
        raise KernelError(f"{kind} is no plain RMS norm")
    if getattr(module, "variance_size_override", None) is not None:
        raise KernelError("its variance is that of some of the features only")
    weight: torch.Tensor = module.weight.detach()
    if kind == "GemmaRMSNorm":
        weight = weight.to(torch.float32) + 1  # as it is multiplied with, in float32
    return NormLayer(name, weight, float(module.variance_epsilon))

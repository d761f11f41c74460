"""Right kernels for every slot, in plain torch: what the faulty ones beside this file start from.

They sum in float32 and round where vLLM's own kernels do. Experts, and on a GPU weights of 4 or 8
bits, are the package's own kernels: plain torch would decode them in every step.
"""

from __future__ import annotations

import torch

from spark_prof.kernels.kernel_error import KernelError
from spark_prof.swaps.builtin import build_kept
from spark_prof.swaps.layers import (
    ExpertsLayer,
    Layer,
    LinearLayer,
    NormLayer,
    Replacement,
    RouterLayer,
)


def build(layer: Layer) -> Replacement | None:
    """A right kernel for any layer."""
    if isinstance(layer, NormLayer):
        return _norm(layer)
    if isinstance(layer, RouterLayer):
        return _router(layer)
    if isinstance(layer, ExpertsLayer):
        if isinstance(layer.gate_up, torch.Tensor):
            raise KernelError(f"{layer.name}: only experts of 4 bits are computed here")
        return build_kept(layer, insist=True)
    if isinstance(layer.weight, torch.Tensor):
        return _linear(layer, layer.weight)
    return (
        build_kept(layer, insist=True) if _on_gpu(layer) else _linear(layer, layer.weight.decode())
    )


def _on_gpu(layer: LinearLayer) -> bool:
    weight = layer.weight
    return bool((weight.packed if hasattr(weight, "packed") else weight.values).is_cuda)


def _linear(layer: LinearLayer, weight: torch.Tensor) -> Replacement:
    exact = weight.detach().to(torch.float32).clone()

    def run(x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        product = x.to(torch.float32) @ exact.T
        return (product if bias is None else product + bias).to(x.dtype)

    return Replacement(run, 0, "kept", exact.nbytes, f"{layer.slot} in plain torch")


def _norm(layer: NormLayer) -> Replacement:
    weight, epsilon = layer.weight.detach().clone(), layer.epsilon

    def normed(x: torch.Tensor) -> torch.Tensor:
        root = torch.rsqrt(x.square().mean(-1, keepdim=True) + epsilon)
        return (x * root).to(weight.dtype) * weight

    def run(
        x: torch.Tensor, residual: torch.Tensor | None = None
    ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        if residual is None:
            return normed(x.to(torch.float32)).to(x.dtype)
        both = x.to(torch.float32) + residual.to(torch.float32)
        return normed(both).to(x.dtype), both.to(x.dtype)

    return Replacement(run, 0, "kept", weight.nbytes, "norm in plain torch")


def _router(layer: RouterLayer) -> Replacement:
    def run(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        values = logits.to(torch.float32)
        scores = values.sigmoid() if layer.scoring == "sigmoid" else values.softmax(-1)
        choice = scores if layer.correction is None else scores + layer.correction
        chosen = choice.sort(dim=-1, descending=True, stable=True).indices[:, : layer.top_k]
        weights = scores.gather(1, chosen)
        if layer.renormalize:
            weights = weights / weights.sum(-1, keepdim=True)
        return weights * layer.scale, chosen.to(torch.int32)

    return Replacement(run, 0, "kept", 0, "router in plain torch")

"""Right kernels for every slot, in plain torch, and faulty ones: each function here is a builder.

The right ones sum in float32 and round where vLLM's own kernels do. Experts, and on a GPU weights
of 4 or 8 bits, are the package's own kernels: plain torch would decode them in every step.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import torch

from spark_prof.kernels.candidate import (
    AttentionLayer,
    NormedExpertsLayer,
    NormedLinearLayer,
    NormedMlpLayer,
)
from spark_prof.kernels.formats import GlobalScale, MxFp4, NvFp4
from spark_prof.kernels.kernel_error import KernelError
from spark_prof.swaps.builders import build_kept
from spark_prof.swaps.layers import (
    ExpertsLayer,
    Layer,
    LinearLayer,
    NormLayer,
    Replacement,
    RouterLayer,
)
from spark_prof.swaps.templates import norm, router

Change = Callable[[torch.Tensor], torch.Tensor]
Weight = TypeVar("Weight", NvFp4, MxFp4, torch.Tensor)

TOO_MANY = 1 << 50
"""Elements, of which no machine has the memory."""

RIGHT_CALLS = 300
"""More than a trial of three layers takes."""

_seen: list[Any] = []
"""Of the calls in this process."""


def right(layer: Layer) -> Replacement:
    """A right kernel for any layer."""
    if isinstance(layer, NormLayer):
        return _norm(layer)
    if isinstance(layer, RouterLayer):
        return _router(layer)
    if isinstance(layer, NormedLinearLayer):
        return _normed_linear(layer)
    if isinstance(layer, NormedExpertsLayer):
        return _normed_experts(layer)
    if isinstance(layer, NormedMlpLayer):
        return _normed_mlp(layer)
    if isinstance(layer, AttentionLayer):
        raise KernelError(f"{layer.name}: attention is not computed here")
    if isinstance(layer, ExpertsLayer):
        if isinstance(layer.gate_up, torch.Tensor):
            raise KernelError(f"{layer.name}: only experts of 4 bits are computed here")
        return build_kept(layer, insist=True)
    if isinstance(layer.weight, torch.Tensor):
        return _linear(layer, layer.weight)
    if _on_gpu(layer):
        return build_kept(layer, insist=True)
    return _linear(layer, layer.weight.decode())


def _exact(weight: Any) -> torch.Tensor:
    """A copy in float32."""
    decoded = weight if isinstance(weight, torch.Tensor) else weight.decode()
    return decoded.detach().to(torch.float32, copy=True)


def _normed(layer: NormLayer) -> Callable[..., tuple[torch.Tensor, torch.Tensor]]:
    """The norm of x + residual, rounded, in float32, and that sum."""
    scale, epsilon = _exact(layer.weight), layer.epsilon

    def norm_of(
        x: torch.Tensor, residual: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        total = x.float() if residual is None else x.float() + residual.float()
        size = (total.square().mean(-1, keepdim=True) + epsilon).rsqrt()
        return (total * size * scale).to(x.dtype).float(), total.to(x.dtype)

    return norm_of


def _normed_linear(layer: NormedLinearLayer) -> Replacement:
    weight, norm_of = _exact(layer.linear.weight), _normed(layer.norm)

    def run(
        x: torch.Tensor, residual: torch.Tensor | None, bias: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        normed, total = norm_of(x, residual)
        product = normed @ weight.T
        return (product if bias is None else product + bias).to(x.dtype), total

    return Replacement(run, 16, "kept", weight.nbytes, "plain torch")


def _gated(x: torch.Tensor, gate_up: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """What down is multiplied with, of gate and up one above the other."""
    gate, up = (x @ gate_up.T).to(dtype).float().chunk(2, -1)
    return (torch.nn.functional.silu(gate) * up).to(dtype).float()


def _normed_mlp(layer: NormedMlpLayer) -> Replacement:
    gate_up, down = _exact(layer.gate_up.weight), _exact(layer.down.weight)
    norm_of = _normed(layer.norm)

    def run(x: torch.Tensor, residual: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
        normed, total = norm_of(x, residual)
        return (_gated(normed, gate_up, x.dtype) @ down.T).to(x.dtype), total

    return Replacement(run, 16, "kept", gate_up.nbytes + down.nbytes, "plain torch")


def _normed_experts(layer: NormedExpertsLayer) -> Replacement:
    """Of experts with SiLU and without biases, each token by itself."""
    gate, norm_of = _exact(layer.gate.weight), _normed(layer.norm)
    gate_up, down = _exact(layer.experts.gate_up), _exact(layer.experts.down)
    choose = partial(router._by_torch, router=layer.experts.router)

    def run(x: torch.Tensor, residual: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
        normed, total = norm_of(x, residual)
        y = torch.zeros_like(normed)
        weights, experts = choose((normed @ gate.T).to(x.dtype))
        for token, chosen in enumerate(experts.tolist()):
            for place, expert in enumerate(chosen):
                inner = _gated(normed[token], gate_up[expert], x.dtype)
                y[token] += weights[token, place] * (down[expert] @ inner)
        return y.to(x.dtype), total

    return Replacement(run, 16, "kept", gate_up.nbytes + down.nbytes, "plain torch")


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
    weight = layer.weight.detach().clone()

    def run(x: torch.Tensor, residual: torch.Tensor | None = None) -> Any:
        y, both = norm._by_torch(x, residual, weight, layer.epsilon)
        return y if residual is None else (y, both)

    return Replacement(run, 0, "kept", weight.nbytes, "norm in plain torch")


def _router(layer: RouterLayer) -> Replacement:
    run = partial(router._by_torch, router=layer)
    return Replacement(run, 0, "kept", 0, "router in plain torch")


def _with_result(layer: Layer, change: Change) -> Replacement:
    """The right kernel; `change` makes of its first result what it returns."""
    replacement = right(layer)
    run = replacement.run

    def changed(*arguments: Any) -> Any:
        result = run(*arguments)
        return (change(result[0]), *result[1:]) if isinstance(result, tuple) else change(result)

    return replace(replacement, run=changed)


def _before_result(layer: Layer, act: Callable[[], None]) -> Replacement:
    """The right kernel; `act` is called before each of its calls."""
    replacement = right(layer)
    run = replacement.run

    def late(*arguments: Any) -> Any:
        act()
        return run(*arguments)

    return replace(replacement, run=late)


def throws_at_build(layer: Layer) -> Replacement:
    raise RuntimeError("made to fail when it is built")


def throws_on_the_second_rank(layer: Layer) -> Replacement:
    if torch.distributed.get_rank() == 1:
        raise RuntimeError("made to fail on a rank")
    return right(layer)


def throws_at_call(layer: Layer) -> Replacement:
    def fail() -> None:
        raise RuntimeError("made to fail when it is called")

    return _before_result(layer, fail)


def throws_later(layer: Layer) -> Replacement:
    def fail_later() -> None:
        _seen.append(None)
        if len(_seen) > RIGHT_CALLS:
            raise RuntimeError("made to fail while it serves")

    return _before_result(layer, fail_later)


def hangs(layer: Layer) -> Replacement:
    """For ten seconds, in its first call in a process, in whichever layer that is."""

    def wait_once() -> None:
        if not _seen:
            _seen.append(None)
            time.sleep(10.0)

    return _before_result(layer, wait_once)


def allocates_at_build(layer: Layer) -> Replacement:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.empty(TOO_MANY, dtype=torch.bfloat16, device=device)
    return right(layer)


def allocates_at_call(layer: Layer) -> Replacement:
    return _with_result(layer, lambda result: result + result.new_empty(TOO_MANY)[0])


def keeps_memory(layer: Layer) -> Replacement:
    def keep(result: torch.Tensor) -> torch.Tensor:
        _seen.append(result.clone())
        return result

    return _with_result(layer, keep)


def doubled_scale(layer: Layer) -> Replacement:
    return _with_result(layer, lambda result: result * 2)


def wrong_shape(layer: Layer) -> Replacement:
    return _with_result(layer, lambda result: result[..., :-1].contiguous())


def wrong_dtype(layer: Layer) -> Replacement:
    return _with_result(layer, lambda result: result.double())


def returns_nan(layer: Layer) -> Replacement:
    def spoiled(result: torch.Tensor) -> torch.Tensor:
        result[..., 0, 0] = torch.nan
        return result

    return _with_result(layer, spoiled)


def swapped_expert(layer: Layer) -> Replacement:
    """Uses the weights of expert 1 for expert 0 and the other way round: slots moe and router."""
    if isinstance(layer, RouterLayer):
        replacement = right(layer)
        run = replacement.run

        def swapped(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            weights, experts = run(logits)
            return weights, torch.where(experts < 2, 1 - experts, experts)

        return replace(replacement, run=swapped)
    if not isinstance(layer, ExpertsLayer):
        raise KernelError(f"{layer.name} has no experts to swap")
    biases = (layer.gate_up_bias, layer.down_bias)
    gate_up_bias, down_bias = (None if bias is None else _swapped(bias) for bias in biases)
    gate_up, down = _weight(layer.gate_up), _weight(layer.down)
    biased = replace(layer, gate_up_bias=gate_up_bias, down_bias=down_bias)
    return right(replace(biased, gate_up=gate_up, down=down))


def _weight(weight: Weight) -> Weight:
    if isinstance(weight, torch.Tensor):
        return _swapped(weight)
    if isinstance(weight, MxFp4):
        return MxFp4(_swapped(weight.packed), _swapped(weight.scales))
    scale = weight.global_scale
    value = _swapped(scale.value) if scale.value.ndim == 3 else scale.value
    scales = _swapped(weight.scales.view(torch.uint8)).view(torch.float8_e4m3fn)
    return NvFp4(_swapped(weight.packed), scales, GlobalScale(value, scale.convention))


def _swapped(experts: torch.Tensor) -> torch.Tensor:
    order = torch.arange(experts.shape[0], device=experts.device)
    order[:2] = order[:2].flip(0)
    return experts[order]

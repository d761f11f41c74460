"""Puts the choice between vLLM's own kernel and a replacement into the layers of a live model.

Every wrapper asks at each call which side is active. What it calls otherwise is the method that was
there before, so that a layer without a live replacement computes as it always did.

Where torch.compile traces the model it sees one opaque operator with a layer's inputs and outputs;
its body is Python and runs when the model runs or a CUDA graph is captured. The layer is found by a
tensor of its own, not by its name: layers of one shape then stay one piece of code to compile.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

import torch

from spark_prof.swaps import layer_parts
from spark_prof.swaps.build import SwapPoint
from spark_prof.swaps.guard import NOT_TAKEN, GuardedReplacement
from spark_prof.swaps.swap_settings import SIDES, plain_side

Choices = Mapping[str, GuardedReplacement]


def _chosen(choices: Choices, tokens: int) -> GuardedReplacement | None:
    guarded = choices.get(plain_side(SIDES.active))
    return guarded if guarded is not None and guarded.takes(tokens) else None


class _LinearBody:
    """What a swapped matrix computes; an object, so that the recorder can mark its calls."""

    def __init__(self, layer: Any, choices: Choices) -> None:
        self._layer = layer
        self._stock = _own_product(layer)
        self._choices = choices

    def run(self, x: torch.Tensor, bias: torch.Tensor | None) -> Any:
        """The layer's result on the active side."""
        tokens = x.numel() // x.shape[-1]
        guarded = _chosen(self._choices, tokens)
        if guarded is not None:
            flat = x.reshape(tokens, x.shape[-1]).contiguous()
            y = guarded.run(SIDES.active, flat, bias)
            if y is not NOT_TAKEN:
                return y.reshape(*x.shape[:-1], y.shape[-1])
        return self._stock(self._layer, x, bias)


def _own_product(layer: Any) -> Callable[..., Any]:
    """What vLLM multiplies with; a `forward` that goes past `quant_method` is led to it.

    That of DeepSeek-V3's fused_qkv_a_proj does, in BF16.
    """
    if not getattr(layer, "_use_min_latency_gemm", False):
        apply: Callable[..., Any] = layer.quant_method.apply
        return apply
    layer._use_min_latency_gemm = False
    product = torch.ops.vllm.min_latency_fused_qkv_a_proj
    return lambda layer, x, _: product(x, layer.weight)


def swap_linear(point: SwapPoint, choices: Choices, compiled: bool) -> None:
    """Lets a matrix choose, which computes by its quant_method's `apply`.

    Where torch.compile traces the model, it still never compiles the lm_head.
    """
    layer = point.module
    body = layer.spark_prof_body = _LinearBody(layer, choices)
    if compiled and point.slot != "lm_head":
        _give_key(layer, body, next(layer.parameters()).device)
        rows = layer_parts.output_rows(layer)

        def apply(layer: Any, x: torch.Tensor, bias: torch.Tensor | None = None) -> Any:
            return torch.ops.spark_prof.linear(x, bias, layer.spark_prof_key, rows)
    else:

        def apply(layer: Any, x: torch.Tensor, bias: torch.Tensor | None = None) -> Any:  # noqa: ARG001 vLLM's signature
            return body.run(x, bias)

    # A copy: vLLM may share one quantization method between layers.
    method = copy.copy(layer.quant_method)
    method.apply = apply
    layer.quant_method = method


def swap_experts(point: SwapPoint, choices: Choices) -> None:
    """Lets a mixture of experts choose; its body is Python under torch.compile, too."""
    runner = point.module
    experts, router = runner.routed_experts, runner.router
    select, modular = router.select_experts, experts.forward_modular
    monolithic = experts.forward_monolithic
    width = features_of_experts(runner)

    def select_experts(*arguments: Any, **named: Any) -> Any:
        states, logits = _first_two(arguments, named, "hidden_states", "router_logits")
        if _chosen(choices, states.shape[0]) is not None:
            # The replacement routes by itself: the logits travel in place of the choice.
            return logits, logits
        return select(*arguments, **named)

    def forward_modular(
        x: torch.Tensor,
        topk_weights: torch.Tensor,
        topk_ids: torch.Tensor,
        shared_experts: Any = None,
        shared_experts_input: torch.Tensor | None = None,
        **named: Any,
    ) -> Any:
        if topk_weights is topk_ids:
            y = _run(choices, x, topk_weights, width)
            if y is not NOT_TAKEN:
                if shared_experts is not None:
                    _run_shared(shared_experts, shared_experts_input)
                return y
            topk_weights, topk_ids = select(
                hidden_states=x,
                router_logits=topk_weights,
                topk_indices_dtype=runner._quant_method.topk_indices_dtype,
            )
        return modular(
            x=x,
            topk_weights=topk_weights,
            topk_ids=topk_ids,
            shared_experts=shared_experts,
            shared_experts_input=shared_experts_input,
            **named,
        )

    def forward_monolithic(*arguments: Any, **named: Any) -> Any:
        x, logits = _first_two(arguments, named, "x", "router_logits")
        y = _run(choices, x, logits, width)
        return monolithic(*arguments, **named) if y is NOT_TAKEN else y

    router.select_experts = select_experts
    experts.forward_modular = forward_modular
    experts.forward_monolithic = forward_monolithic


def _run(choices: Choices, x: torch.Tensor, logits: torch.Tensor, width: int) -> Any:
    """Runs the active side's experts on tokens of that many features."""
    guarded = _chosen(choices, x.shape[0])
    if guarded is None:
        return NOT_TAKEN
    y = guarded.run(SIDES.active, x[:, :width].contiguous(), logits)
    if y is not NOT_TAKEN and width < x.shape[-1]:
        # vLLM pads a token's features for some of its kernels and expects them back so.
        y = torch.nn.functional.pad(y, (0, x.shape[-1] - width))
    return y


def features_of_experts(runner: Any) -> int:
    """The features of a token that the experts of a runner take, without vLLM's padding."""
    config = runner.moe_config
    return int(config.hidden_dim_unpadded or config.hidden_dim)


def _run_shared(shared_experts: Any, value: torch.Tensor | None) -> None:
    """Runs the shared experts if vLLM's own kernel would have run them beside itself."""
    from vllm.model_executor.layers.fused_moe.runner.shared_experts import SharedExpertsOrder

    shared_experts(value, SharedExpertsOrder.MK_INTERNAL_OVERLAPPED)


def swap_choice(point: SwapPoint, choices: Choices) -> None:
    """Lets the choice of experts choose its kernel."""
    router = point.module.router
    select = router.select_experts

    def select_experts(*arguments: Any, **named: Any) -> Any:
        _, logits = _first_two(arguments, named, "hidden_states", "router_logits")
        guarded = _chosen(choices, logits.shape[0])
        if guarded is not None:
            result = guarded.run(SIDES.active, logits)
            if result is not NOT_TAKEN:
                weights, experts = result
                kind = named.get("topk_indices_dtype")
                return weights, experts if kind is None else experts.to(kind)
        return select(*arguments, **named)

    router.select_experts = select_experts


class _NormBody:
    """What a swapped norm computes."""

    def __init__(self, stock: Callable[..., Any], choices: Choices) -> None:
        self._stock = stock
        self._choices = choices

    def run(self, x: torch.Tensor, residual: torch.Tensor | None = None) -> Any:
        """The norm's result on the active side."""
        width = x.shape[-1]
        guarded = _chosen(self._choices, x.numel() // width)
        if guarded is not None:
            flat = None if residual is None else residual.reshape(-1, width).contiguous()
            result = guarded.run(SIDES.active, x.reshape(-1, width).contiguous(), flat)
            if isinstance(result, torch.Tensor):
                return result.reshape(x.shape)
            if result is not NOT_TAKEN:
                return tuple(part.reshape(x.shape) for part in result)
        return self._stock(x) if residual is None else self._stock(x, residual)


def swap_norm(point: SwapPoint, choices: Choices, compiled: bool) -> None:
    """Lets a norm choose.

    A compiled model fuses its own norms with what is beside them; behind an operator that ends, and
    vLLM's hand-written kernel computes side a. So a norm in a compiled model is compared with two
    engines.
    """
    module = point.module
    stock = _not_in_place(module) if compiled else module._forward_method
    body = module.spark_prof_body = _NormBody(stock, choices)
    if not compiled:
        module._forward_method = body.run
        return
    _give_key(module, body, module.weight.device)

    def forward(x: torch.Tensor, residual: torch.Tensor | None = None) -> Any:
        if residual is None:
            return torch.ops.spark_prof.norm(x, module.spark_prof_key)
        return torch.ops.spark_prof.norm_residual(x, residual, module.spark_prof_key)

    module._forward_method = forward


def _not_in_place(module: Any) -> Callable[..., Any]:
    """What vLLM has for a norm, without writing to its arguments, as an operator may not."""
    kernel = module.forward_cuda if module.weight.is_cuda else module.forward_native

    def stock(x: torch.Tensor, residual: torch.Tensor | None = None) -> Any:
        if residual is None:
            return kernel(x.clone())
        return kernel(x.clone(), residual.clone())

    return stock


_BODIES: dict[int, _LinearBody | _NormBody] = {}
_LIBRARY: list[torch.library.Library] = []


def _give_key(module: Any, body: _LinearBody | _NormBody, device: torch.device) -> None:
    """Gives a module the buffer by which the operators find its body."""
    key = torch.zeros(16, dtype=torch.uint8, device=device)
    module.register_buffer("spark_prof_key", key, persistent=False)
    _BODIES[key.data_ptr()] = body


def register_ops() -> None:
    """Registers the operators, once a process; those of parts of a decoder layer, too."""
    if _LIBRARY:
        return
    library = torch.library.Library("spark_prof", "FRAGMENT")
    _LIBRARY.append(library)
    operators: tuple[tuple[str, Callable[..., Any], Callable[..., Any]], ...] = (
        (
            "linear(Tensor x, Tensor? bias, Tensor key, int rows) -> Tensor",
            lambda x, bias, key, _: _BODIES[key.data_ptr()].run(x, bias),
            lambda x, _bias, _key, rows: x.new_empty((*x.shape[:-1], rows)),
        ),
        (
            "norm(Tensor x, Tensor key) -> Tensor",
            lambda x, key: _BODIES[key.data_ptr()].run(x, None),
            lambda x, _: torch.empty_like(x),
        ),
        (
            "norm_residual(Tensor x, Tensor residual, Tensor key) -> (Tensor, Tensor)",
            lambda x, residual, key: _BODIES[key.data_ptr()].run(x, residual),
            lambda x, residual, _: (torch.empty_like(x), torch.empty_like(residual)),
        ),
        *layer_parts.OPERATORS,
    )
    for schema, run, fake in operators:
        name = schema.partition("(")[0]
        library.define(schema)
        library.impl(name, run, "CompositeExplicitAutograd")
        torch.library.register_fake(f"spark_prof::{name}", fake, lib=library)


def _first_two(
    arguments: tuple[Any, ...], named: dict[str, Any], first: str, second: str
) -> tuple[Any, Any]:
    values = [*arguments[:2], *(named[name] for name in (first, second)[len(arguments) :])]
    return values[0], values[1]

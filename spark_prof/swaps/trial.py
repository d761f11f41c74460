"""Tries every replacement on made-up tokens before the engine takes requests.

A kernel that raises, returns something else than vLLM's, cannot be captured in a CUDA graph, or
takes seconds is found here, where vLLM's own kernel can still take its place. What both compute
from the same tokens is compared, layer by layer.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import Any

import torch

from spark_prof.swaps.build import Swapped
from spark_prof.swaps.dispatch import features_of_experts
from spark_prof.swaps.guard import NOT_TAKEN, TRIAL, Guarded, deadline
from spark_prof.swaps.points import SwapPoint

__all__ = ["LayerError", "try_all"]

_SLOW_SECONDS = 2.0
"""What no call of a kernel that is compiled takes."""

_TOKENS = range(1, 17)
_COMPARED = 4
"""Tokens with which both kernels are compared at a time."""

_TAKEN = 8.0  # what is added to the logits of the experts that a token shall take


@dataclass(frozen=True)
class LayerError:
    """How far a replacement's result is from that of vLLM's own kernel, for the same tokens.

    Attributes:
        relative_l2: the L2 norm of the difference over that of vLLM's result.
        worst: the largest difference of an element.
        scale: the root mean square of vLLM's result.
    """

    relative_l2: float
    worst: float
    scale: float


def try_all(
    swapped: Iterable[Swapped], vllm_config: Any, seconds: float
) -> dict[int, dict[str, float]]:
    """Tries the live replacements, and turns off those that fail.

    Args:
        swapped: the places, whose layers still have vLLM's own methods.
        vllm_config: of the engine.
        seconds: after which a kernel that does not come back ends the process.

    Returns:
        `LayerError` as a dictionary by the id of each `Guarded` that could be compared.
    """
    errors: dict[int, dict[str, float]] = {}
    seen: set[tuple[Any, ...]] = set()
    for place in swapped:
        for guarded in dict.fromkeys(place.choices.values()):
            if not guarded.live:
                continue
            try:
                with torch.inference_mode(), deadline(seconds, f"{guarded.label} has not ended"):
                    work = _work(place.point)
                    kind = (
                        place.point.slot,
                        place.point.kind,
                        guarded.label.rpartition("=")[2],
                        *work.shape,
                    )
                    _run_all(guarded, work, every=kind not in seen)
                    seen.add(kind)
                    if guarded.live and (error := _compare(guarded, work, vllm_config)):
                        errors[id(guarded)] = asdict(error)
            except Exception as error:
                guarded.fail(f"on trial: {type(error).__name__}: {error}", quiet=True)
                _forget()
    return errors


@dataclass(frozen=True)
class _Work:
    """How one place is tried.

    Attributes:
        shape: tells places of the same work from others.
        arguments: for a number of tokens and of a round.
        own: what vLLM's kernel makes of them.
        rounds: of comparing, after which every expert has had a token.
    """

    shape: tuple[Any, ...]
    arguments: Callable[[int, int], tuple[Any, ...]]
    own: Callable[..., Any]
    rounds: int = 1


def _work(point: SwapPoint) -> _Work:
    module = point.module
    parameter = next(module.parameters())
    device, kind = parameter.device, torch.get_default_dtype()

    def random(*shape: int, dtype: torch.dtype | None = None) -> torch.Tensor:
        generator = torch.Generator(device).manual_seed(shape[0])
        value = torch.randn(shape, generator=generator, device=device)
        return value.to(dtype or _activation_dtype(module, kind))

    if point.kind in ("experts", "choice"):
        config = module.moe_config
        features, experts = features_of_experts(module), int(config.num_experts)
        logits = getattr(config, "router_logits_dtype", None)

        top_k = int(config.experts_per_token)

        def routed(tokens: int, turn: int) -> tuple[Any, ...]:
            scores = random(tokens, experts, dtype=logits)
            # Each token is made to take the next experts: in the end all have been taken.
            first = torch.arange(tokens, device=device)[:, None] + turn * tokens
            taken = (first * top_k + torch.arange(top_k, device=device)) % experts
            scores = scores.scatter_add(1, taken, scores.new_full(taken.shape, _TAKEN))
            return (scores,) if point.kind == "choice" else (random(tokens, features), scores)

        own = _own_choice if point.kind == "choice" else _own_experts
        rounds = -(-experts // (top_k * _COMPARED))
        return _Work((features, experts), routed, lambda *given: own(module, *given), rounds)
    if point.kind == "norm":
        width = int(module.weight.shape[0])
        method = module._forward_method
        return _Work((width,), lambda n, _: (random(n, width), None), lambda x, _: method(x))
    columns = _columns(module)
    apply = module.quant_method.apply
    return _Work(
        (columns, *parameter.shape),
        lambda tokens, _: (random(tokens, columns), None),
        lambda x, bias: apply(module, x, bias),
    )


def _activation_dtype(module: Any, default: torch.dtype) -> torch.dtype:
    """What the model computes in, which a quantized layer's weights do not tell."""
    value = getattr(module, "params_dtype", None)
    if value is None:
        value = getattr(getattr(module, "moe_config", None), "in_dtype", None)
    if value is None and hasattr(module, "weight") and module.weight.is_floating_point():
        value = module.weight.dtype
    return value if isinstance(value, torch.dtype) else default


def _columns(module: Any) -> int:
    for name in ("input_size_per_partition", "embedding_dim", "input_size"):
        if isinstance(value := getattr(module, name, None), int):
            return value
    raise AttributeError(f"{type(module).__name__} does not say how many features it takes")


def _run_all(guarded: Guarded, work: _Work, *, every: bool) -> None:
    """Runs the replacement for all numbers of tokens that it takes, or for the least of them."""
    counts = [tokens for tokens in _TOKENS if guarded.takes(tokens)]
    if not counts:
        guarded.fail("it takes no number of tokens from 1 to 16", quiet=True)
    for tokens in counts if every else counts[:1]:
        arguments = work.arguments(tokens, 0)
        result = _replaced(guarded, arguments)  # compiles what is not yet
        if not guarded.live:
            return
        begin = time.perf_counter()
        again = _replaced(guarded, arguments)
        took = time.perf_counter() - begin
        if took > _SLOW_SECONDS:
            guarded.fail(f"a call took {took:.1f} s", quiet=True)
        if not guarded.live:
            return
        _check_like(again, result)
        if every and arguments[0].is_cuda:
            _capture(guarded, arguments, result)
        if not guarded.live:
            return


def _replaced(guarded: Guarded, arguments: tuple[Any, ...]) -> Any:
    result = guarded.run(TRIAL, *arguments)
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return result


def _check_like(one: Any, other: Any) -> None:
    for a, b in zip(_tensors(one), _tensors(other), strict=True):
        if a.shape != b.shape or a.dtype != b.dtype:
            raise ValueError(f"it returns {a.dtype} {tuple(a.shape)}, then {tuple(b.shape)}")


def _capture(guarded: Guarded, arguments: tuple[Any, ...], expected: Any) -> None:
    graph = torch.cuda.CUDAGraph()
    begin = time.perf_counter()
    with torch.cuda.graph(graph):
        result = guarded.run(TRIAL, *arguments)
    took = time.perf_counter() - begin
    if took > _SLOW_SECONDS:
        guarded.fail(f"its capture in a CUDA graph took {took:.1f} s", quiet=True)
    if not guarded.live:
        return
    graph.replay()
    torch.cuda.synchronize()
    for a, b in zip(_tensors(result), _tensors(expected), strict=True):
        error = _difference(a, b)
        if not error.relative_l2 <= 1e-2:
            guarded.fail(
                f"replayed from a CUDA graph it is {error.relative_l2:.2%} off", quiet=True
            )
            return


def _compare(guarded: Guarded, work: _Work, vllm_config: Any) -> LayerError | None:
    """The replacement's largest error, None where vLLM's own kernel cannot run alone.

    Raises:
        ValueError: the results have not the same shape or type.
    """
    tokens = max((n for n in range(1, _COMPARED + 1) if guarded.takes(n)), default=0)
    if not tokens:
        return None
    errors = []
    for turn in range(-(-work.rounds * _COMPARED // tokens)):
        arguments = work.arguments(tokens, turn)
        result = guarded.run(TRIAL, *arguments)
        own = None if result is NOT_TAKEN else _own(work, arguments, vllm_config)
        if own is None:
            return None
        errors.append(_checked(_tensors(result), _tensors(own)))
    return max(errors, key=lambda error: error.relative_l2)


def _own(work: _Work, arguments: tuple[Any, ...], vllm_config: Any) -> Any:
    """What vLLM's kernel returns, None where it wants more of an engine than there is yet."""
    from vllm.config import set_current_vllm_config
    from vllm.forward_context import set_forward_context

    tokens = arguments[0].shape[0]
    try:
        with (
            set_current_vllm_config(vllm_config),
            set_forward_context(None, vllm_config, num_tokens=tokens),
        ):
            return work.own(*arguments)
    except Exception:
        return None


def _checked(result: list[torch.Tensor], own: list[torch.Tensor]) -> LayerError:
    for replaced, stock in zip(result, own, strict=True):
        if replaced.shape != stock.shape or replaced.dtype != stock.dtype:
            raise ValueError(
                f"it returns {replaced.dtype} {tuple(replaced.shape)} where vLLM's kernel returns "
                f"{stock.dtype} {tuple(stock.shape)}"
            )
        if stock.isfinite().all() and not replaced.isfinite().all():
            raise ValueError("it returns NaN or infinity where vLLM's kernel does not")
    return _difference(result[0], own[0])


def _difference(value: torch.Tensor, expected: torch.Tensor) -> LayerError:
    exact, off = expected.double(), (value.double() - expected.double())
    norm = float(exact.norm())
    relative = float(off.norm()) / norm if norm else float(off.norm())
    return LayerError(relative, float(off.abs().max()), norm / max(1, exact.numel()) ** 0.5)


def _own_experts(runner: Any, x: torch.Tensor, logits: torch.Tensor) -> Any:
    """What vLLM's experts return for these tokens, cut to their features."""
    experts, width = runner.routed_experts, x.shape[-1]
    ensure = getattr(experts, "_ensure_moe_quant_config_init", None)
    if ensure is not None:
        ensure()
    padded = torch.nn.functional.pad(x, (0, int(runner.moe_config.hidden_dim) - width))
    if experts.quant_method.is_monolithic:
        return experts.forward_monolithic(x=padded, router_logits=logits)[:, :width]
    weights, chosen = _select(runner, padded, logits)
    return experts.forward_modular(x=padded, topk_weights=weights, topk_ids=chosen)[:, :width]


def _own_choice(runner: Any, logits: torch.Tensor) -> Any:
    states = logits.new_zeros(logits.shape[0], int(runner.moe_config.hidden_dim))
    weights, experts = _select(runner, states, logits)
    return weights, experts.to(torch.int32)


def _select(runner: Any, states: torch.Tensor, logits: torch.Tensor) -> Any:
    return runner.router.select_experts(
        hidden_states=states,
        router_logits=logits,
        topk_indices_dtype=runner.routed_experts.quant_method.topk_indices_dtype,
    )


def _tensors(value: Any) -> list[torch.Tensor]:
    return [value] if isinstance(value, torch.Tensor) else list(value)


def _forget() -> None:
    """Gives back what a failed kernel had taken."""
    if torch.cuda.is_available():
        torch.cuda.empty_cache()

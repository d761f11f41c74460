"""Tries every replacement on made-up tokens before the engine takes requests.

A kernel that raises, returns something else than vLLM's, cannot be captured in a CUDA graph, or
takes seconds is found here, where vLLM's own kernel can still take its place. What both compute
from the same tokens is compared, layer by layer.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

import torch

from spark_prof.swaps.build import Swapped
from spark_prof.swaps.guard import NOT_TAKEN, TRIAL, Guarded, LayerError, deadline
from spark_prof.swaps.trial_work import COMPARED, Work, work_of

__all__ = ["try_all"]

_SLOW_SECONDS = 2.0
"""What no call of a kernel that is compiled takes."""

_TOKENS = range(1, 17)


def try_all(swapped: Iterable[Swapped], vllm_config: Any, seconds: float) -> None:
    """Tries the live replacements: turns off those that fail, keeps the error of the others.

    Args:
        swapped: the places, whose layers still have vLLM's own methods.
        vllm_config: of the engine.
        seconds: after which a kernel that does not come back ends the process.
    """
    seen: set[tuple[Any, ...]] = set()
    for place in swapped:
        for guarded in dict.fromkeys(place.choices.values()):
            if not guarded.live:
                continue
            try:
                with torch.inference_mode(), deadline(seconds, f"{guarded.label} has not ended"):
                    work = work_of(place.point)
                    kind = (place.point.slot, place.point.kind, guarded.kernel, *work.shape)
                    _run_all(guarded, work, every=kind not in seen)
                    seen.add(kind)
                    if guarded.live:
                        guarded.error = _compare(guarded, work, vllm_config)
            except Exception as error:
                guarded.fail(f"on trial: {type(error).__name__}: {error}", quiet=True)
                _forget()


def _run_all(guarded: Guarded, work: Work, *, every: bool) -> None:
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


def _compare(guarded: Guarded, work: Work, vllm_config: Any) -> LayerError | None:
    """The replacement's largest error, None where vLLM's own kernel cannot run alone.

    Raises:
        ValueError: the results have not the same shape or type.
    """
    tokens = max((n for n in range(1, COMPARED + 1) if guarded.takes(n)), default=0)
    if not tokens:
        return None
    errors = []
    for turn in range(-(-work.rounds * COMPARED // tokens)):
        arguments = work.arguments(tokens, turn)
        result = guarded.run(TRIAL, *arguments)
        own = None if result is NOT_TAKEN else _own(work, arguments, vllm_config)
        if own is None:
            return None
        errors.append(_checked(_tensors(result), _tensors(own)))
    return max(errors, key=lambda error: error.relative_l2)


def _own(work: Work, arguments: tuple[Any, ...], vllm_config: Any) -> Any:
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


def _tensors(value: Any) -> list[torch.Tensor]:
    return [value] if isinstance(value, torch.Tensor) else list(value)


def _forget() -> None:
    """Gives back what a failed kernel had taken."""
    if torch.cuda.is_available():
        torch.cuda.empty_cache()

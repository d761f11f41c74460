"""A candidate as the cases call it: packed and run, and its result held to what it must be."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from spark_prof.kernels.candidate import (
    Candidate,
    ExpertsLayer,
    Layer,
    LinearLayer,
    NormLayer,
    Replacement,
    RouterLayer,
    WrongResult,
    check_taken,
)
from spark_prof.kernels.check.bound import Expected
from spark_prof.kernels.check.inputs import Weight
from spark_prof.kernels.check.oracles import RoutingRule
from spark_prof.kernels.check.verdict import Judgement, judge, same_bits
from spark_prof.kernels.routing import Scoring

CHANGED = 0.25
"""Relative L2 error of a token's result that a kernel may have which changes the weights' bits.

MXFP4 is off by some 0.11; a scale that is wrong by a factor of two is off by 0.5 or more."""

Kind = tuple[tuple[int, ...], torch.dtype]
"""The shape and dtype of a result."""


class Called:
    """A candidate with the signatures that the cases want, and the judge for what it built."""

    def __init__(self, candidate: Candidate) -> None:
        self._candidate = candidate
        self._bits = "kept"
        self._router: tuple[tuple[Any, ...], Replacement] | None = None
        """Built once for the calls of a case, so that what it keeps of one shows in the next."""

    def build(self, layer: Layer) -> Replacement:
        """The replacement for a layer; raises as `Candidate.build`, or WrongResult."""
        replacement = self._candidate.build(layer)
        if replacement.bits == "changed" and not replacement.line:
            raise WrongResult("it changes the weights' bits; its line must state what is lost")
        self._bits = replacement.bits
        return replacement

    def linear(self, weight: Weight) -> Callable[..., object]:
        """As `cases.Linear`."""
        slot = self._candidate.slot
        replacement = self.build(LinearLayer(f"model.layers.0.{slot}", slot, weight))

        def compute(x: torch.Tensor, bias: torch.Tensor | None, out: torch.Tensor) -> object:
            return self._write(replacement, (x, bias), out)

        return compute

    def experts(self, layer: ExpertsLayer) -> Callable[..., object]:
        """As `cases.Moe`."""
        replacement = self.build(layer)

        def compute(x: torch.Tensor, logits: torch.Tensor, out: torch.Tensor) -> object:
            return self._write(replacement, (x, logits), out)

        return compute

    def route(
        self, logits: torch.Tensor, top_k: int, rule: RoutingRule
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """As `cases.Route`."""
        tokens, experts = logits.shape
        scoring: Scoring = "sigmoid" if rule.sigmoid else "softmax"
        same = (experts, top_k, rule.renormalize, scoring, id(rule.correction), rule.scale)
        if self._router is None or self._router[0] != same:
            how = (rule.renormalize, scoring, rule.correction, rule.scale)
            layer = RouterLayer("model.layers.0.mlp", experts, top_k, *how)
            self._router = same, self.build(layer)
        kinds = [((tokens, top_k), torch.float32), ((tokens, top_k), torch.int32)]
        weights, chosen = self._results(self._router[1], (logits,), kinds)
        return chosen, weights

    def norm(self, weight: torch.Tensor, epsilon: float) -> Callable[..., tuple[torch.Tensor, ...]]:
        """As `cases.BuildNorm`."""
        replacement = self.build(NormLayer("model.norm", weight, epsilon))

        def compute(x: torch.Tensor, residual: torch.Tensor | None) -> tuple[torch.Tensor, ...]:
            kinds = [(tuple(x.shape), x.dtype)] * (1 if residual is None else 2)
            return self._results(replacement, (x, residual), kinds)

        return compute

    def judge(self, result: torch.Tensor, expected: Expected) -> Judgement:
        """By the bound of exact arithmetic where bits are kept, else by the error of a token."""
        return judge(result, expected) if self._bits == "kept" else _judge_changed(result, expected)

    def _write(
        self,
        replacement: Replacement,
        arguments: tuple[torch.Tensor | None, ...],
        out: torch.Tensor,
    ) -> object:
        if not self._candidate.own:
            return replacement.run(*arguments, out)
        (result,) = run_replacement(replacement, arguments, [(tuple(out.shape), out.dtype)])
        return out.copy_(result)

    def _results(
        self,
        replacement: Replacement,
        arguments: tuple[torch.Tensor | None, ...],
        kinds: Sequence[Kind],
    ) -> tuple[torch.Tensor, ...]:
        if self._candidate.own:
            return run_replacement(replacement, arguments, kinds)
        results: tuple[torch.Tensor, ...] = replacement.run(*arguments)
        return results


def run_replacement(
    replacement: Replacement, arguments: tuple[torch.Tensor | None, ...], kinds: Sequence[Kind]
) -> tuple[torch.Tensor, ...]:
    """Calls a replacement; its results are of these kinds, and it left its arguments alone.

    Raises:
        Abstained: it does not take as many tokens.
        WrongResult: a result is something else, or arguments were written to.
    """
    x = arguments[0]
    assert x is not None
    check_taken(replacement, len(x))
    capturing = x.is_cuda and torch.cuda.is_current_stream_capturing()
    # Comparing waits for the device, which a capture does not allow.
    given = (
        []
        if capturing
        else [(a, a.clone(), _memory(a).clone()) for a in arguments if a is not None]
    )
    answer: Any = replacement.run(*arguments)
    results = answer if isinstance(answer, tuple) else (answer,)
    if len(results) != len(kinds):
        raise WrongResult(f"it returns {len(results)} results; it must return {len(kinds)}")
    for result, (shape, dtype) in zip(results, kinds, strict=True):
        if not isinstance(result, torch.Tensor):
            raise WrongResult(f"it returns a {type(result).__name__}, not a tensor")
        if result.dtype != dtype or tuple(result.shape) != shape or result.device != x.device:
            raise WrongResult(
                f"it returns {result.dtype} {tuple(result.shape)} on {result.device}; it must"
                f" return {dtype} {shape} on {x.device}"
            )
        if any(_share(result, argument) for argument in arguments if argument is not None):
            raise WrongResult("its result lies in the memory of an argument; return a new tensor")
    for argument, before, memory in given:
        if not same_bits(argument, before):
            raise WrongResult("it writes to its arguments")
        if not torch.equal(_memory(argument), memory):
            raise WrongResult("it writes beside its arguments")
    return results


def _memory(argument: torch.Tensor) -> torch.Tensor:
    """All bytes of the memory that an argument is part of."""
    raw = torch.empty(0, dtype=torch.uint8, device=argument.device)
    return raw.set_(argument.untyped_storage())


def _share(one: torch.Tensor, other: torch.Tensor) -> bool:
    return bool(one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr())


def _judge_changed(result: torch.Tensor, expected: Expected) -> Judgement:
    """The relative L2 error of each token, against `CHANGED`; NaN and infinities as in `judge`."""
    got, exact = result.to(torch.float64), expected.value
    finite = exact.isfinite()
    wrong = int((got.isfinite() != finite).sum())
    if wrong:
        return Judgement(None, f"{wrong} elements are NaN or infinite, or should be")
    off = torch.where(finite, got - exact, 0.0).norm(dim=-1)
    size = torch.where(finite, exact, 0.0).norm(dim=-1)
    relative = torch.where(size > 0, off / size, torch.where(off > 0, torch.inf, 0.0))
    worst = float(relative.max())
    detail = "" if worst <= CHANGED else f"a token's result is {worst:.0%} off (relative L2)"
    return Judgement(worst / CHANGED, detail)

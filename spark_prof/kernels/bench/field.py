"""Who takes part in a race where weights are the same: the package's kernel and all others."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import torch

from spark_prof.kernels.bench.configurations import best, known_config
from spark_prof.kernels.bench.race import (
    Call,
    RaceSetting,
    clones,
    largest_relative_l2,
    prepared,
    race,
)
from spark_prof.kernels.bench.random_weights import decoded
from spark_prof.kernels.bench.request import BenchRequest
from spark_prof.kernels.bench.results import OURS, BenchCell, ImplementationResult, gpu_name
from spark_prof.kernels.bench.shapes import Kind, matches
from spark_prof.kernels.bench.vllm_humming import humming_experts
from spark_prof.kernels.bench.vllm_linear import bf16_peers, linear_peers
from spark_prof.kernels.bench.vllm_peers import (
    marlin,
    marlin_experts,
    small_products,
    triton_experts,
)
from spark_prof.kernels.candidate import (
    Abstained,
    ExpertsLayer,
    KernelCandidate,
    LinearLayer,
    Replacement,
    check_taken,
)
from spark_prof.kernels.check.inputs import Weight
from spark_prof.kernels.formats import GlobalScale
from spark_prof.kernels.operands import architecture, multiprocessors
from spark_prof.kernels.registry import ReplacementKernel
from spark_prof.kernels.tuning import TunedShape

Stop = Callable[[], bool]
"""Whether a search shall end."""

_BEFORE = "before the search"

CUBLAS, MARLIN = "cuBLAS BF16", "vLLM Marlin"

Compute = Callable[..., torch.Tensor]
"""Computes with x, of experts the logits, and the number of a copy of the weights."""

Make = Callable[[Any, int], Compute]


def _cublas(weight: Weight, copies: int) -> Compute:
    transposed = [matrix.t() for matrix in clones(decoded(weight), copies)]
    return lambda x, number: torch.mm(x, transposed[number])


def _peers(kind: Kind, weights: Any, *, gate: bool) -> Mapping[str, Make]:
    """The other implementations for such weights; there are more for those of a router."""
    if kind == "moe":
        return {
            "vLLM Humming": humming_experts,
            MARLIN: marlin_experts,
            "vLLM Triton": triton_experts,
        }
    if not isinstance(weights, torch.Tensor):
        return {CUBLAS: _cublas, MARLIN: marlin, **linear_peers(weights)}
    few_tokens = {**small_products(weights, gate=gate), **bf16_peers(weights, gate=gate)}
    return {CUBLAS: _cublas, **few_tokens}


@dataclass(frozen=True)
class BenchInputs:
    """Inputs of all calls with one number of tokens; the first dimension is the call's number."""

    source: torch.Tensor  # bfloat16 [calls, M, K]
    buffers: tuple[torch.Tensor, ...]  # where a call's are written, and of experts the logits
    copies: int  # of the weights

    def call(self, compute: Compute) -> Call:
        """The function that runs the call of a number."""
        return lambda number: compute(
            *(buffer[number] for buffer in self.buffers), number % self.copies
        )


class Field:
    """All that take part where weights are the same: each made once, then raced with any inputs.

    One of the package's kernels at most is held against the others; of several each has a field.
    """

    def __init__(
        self,
        request: BenchRequest,
        kind: Kind,
        kernel: ReplacementKernel | None,
        weights: Any,
        copies: int,
        stop: Stop | None = None,  # what ends a search for configurations; None for no search
        *,
        gate: bool = False,  # whether the weights are those of a router without a bias
        input_scale: GlobalScale | None = None,  # for a kernel that rounds activations by it
    ) -> None:
        self._request, self._kernel, self._stop = request, kernel, stop
        self._best: list[Any] = []  # configurations that a search found for other inputs
        self._ours: list[Replacement] = []
        if kernel is not None and matches(OURS, request.competitors):
            self._ours = _replacements(kernel.candidate(), weights, copies, input_scale)
        custom = request.custom
        makes: dict[str, Make] = {} if custom is None else {custom.name: partial(_make_own, custom)}
        makes |= {
            name: make
            for name, make in _peers(kind, weights, gate=gate).items()
            if matches(name, request.competitors)
        }
        self._competitors = {
            name: prepared(name, partial(make, weights, copies)) for name, make in makes.items()
        }

    def raced(
        self,
        cell: BenchCell,
        inputs: BenchInputs,
        expected: torch.Tensor,
        tolerance: float,
        rounded: torch.Tensor | None = None,
    ) -> BenchCell:
        """A piece of work with how all did at it; the package's kernel in its best form.

        Args:
            rounded: what a kernel that rounds its activations makes of them, which is right too.
        """
        right = [expected] if rounded is None else [expected, rounded]

        def write(number: int) -> torch.Tensor:
            return inputs.buffers[0][number].copy_(inputs.source[number])

        def error(outputs: Sequence[torch.Tensor]) -> float:
            return min(largest_relative_l2(outputs, result) for result in right)

        setting = RaceSetting(len(expected), write, error, tolerance, expected.device)
        entered: dict[str, Call | ImplementationResult] = {}
        config: Any = None
        if self._ours:
            config_before = self._config_before(cell.work, setting)
            config = self._searched(config_before, cell.work, inputs, setting)
            entered[OURS] = self._call(config, inputs)
            if config != config_before:
                entered[_BEFORE] = self._call(config_before, inputs)
        for name, other in self._competitors.items():
            entered[name] = other if isinstance(other, ImplementationResult) else inputs.call(other)
        custom = self._request.custom
        results = {r.contestant: r for r in race(entered, setting, self._request.seconds_each)}
        before = results.pop(_BEFORE, None)
        if before and before.us and not _faster(results[OURS], before):
            # The search was misled by less than times differ.
            config, results[OURS] = config_before, replace(before, contestant=OURS)
        before = before or results.get(OURS)
        us = before.us.median if before and before.us else None
        return replace(
            cell,
            results=tuple(results.values()),
            config={} if config is None else asdict(config),
            subject=OURS if custom is None else custom.name,
            before_us=us if self._stop is not None else None,
        )

    def _call(self, config: Any, inputs: BenchInputs) -> Call:
        return inputs.call(_computing(self._ours, None, config))

    def _config_before(self, work: TunedShape, setting: RaceSetting) -> Any:
        """What the kernel runs with before any search; None where there is nothing to choose."""
        if self._kernel is None or not self._kernel.tuned_as:
            return None
        default = self._kernel.function("config_for")(work, multiprocessors(setting.device))
        arch, gpu = architecture(setting.device), gpu_name(setting.device)
        return known_config(default, work, arch, gpu, self._request.runs)

    def _searched(
        self, start: Any, work: TunedShape, inputs: BenchInputs, setting: RaceSetting
    ) -> Any:
        if start is None or self._stop is None:
            return start
        call_of = partial(self._call, inputs=inputs)
        processors = multiprocessors(setting.device)
        fastest = best(start, work, processors, call_of, setting, self._stop, self._best)
        self._best = list(dict.fromkeys((fastest, *self._best)))
        return fastest


def _faster(one: ImplementationResult, other: ImplementationResult) -> bool:
    return one.us is not None and (other.us is None or one.us.median < other.us.median)


def _replacements(
    candidate: KernelCandidate, weights: Any, copies: int, input_scale: GlobalScale | None = None
) -> list[Replacement]:
    """A kernel built for each copy of the weights, which need not outlive it."""
    built = []
    for number in range(copies):
        name, weights_copy = f"model.layers.{number}", deepcopy(weights)
        if isinstance(weights_copy, ExpertsLayer):
            router = replace(weights_copy.router, name=f"{name}.mlp")
            built.append(candidate.build(replace(weights_copy, name=router.name, router=router)))
        else:
            built.append(
                candidate.build(
                    LinearLayer(
                        f"{name}.{candidate.slot}", candidate.slot, weights_copy, input_scale
                    )
                )
            )
    return built


def _make_own(custom: KernelCandidate, weights: Any, copies: int) -> Compute:
    replacements = _replacements(custom, weights, copies)
    if any(replacement.bits == "changed" for replacement in replacements):
        raise Abstained("it changes the weights' bits: the others compute something else")
    return _computing(replacements)


def _computing(replacements: Sequence[Replacement], *arguments: Any) -> Compute:
    """A function that calls the replacement of a number; the package's own take more arguments."""

    def compute(x: torch.Tensor, *rest: Any) -> torch.Tensor:
        *logits, number = rest
        check_taken(replacements[number], len(x))
        result: torch.Tensor = replacements[number].run(x, *(logits or (None,)), *arguments)
        return result

    return compute

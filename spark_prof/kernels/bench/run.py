"""One run of the benchmark: everything that was asked for, one piece of work after another.

A matrix is raced against cuBLAS in BF16, which vLLM gives BF16 weights to, and vLLM's Marlin, one
in BF16 against kernels for few tokens; a mixture of experts, from the router's logits to the
combined output, against vLLM's backends. Somebody's own kernel takes part beside them.
"""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import torch

from spark_prof.kernels.bench.configurations import best, known_config
from spark_prof.kernels.bench.race import (
    Call,
    Setting,
    clones,
    largest_relative_l2,
    plan,
    prepared,
    race,
)
from spark_prof.kernels.bench.random_weights import (
    bytes_of_expert,
    decoded,
    random_experts,
    random_weight,
    stored_bytes,
)
from spark_prof.kernels.bench.request import Request
from spark_prof.kernels.bench.results import OURS, Cell, LeftOut, Result, cache_bytes
from spark_prof.kernels.bench.shapes import DenseShape, ExpertsShape, Kind, WeightFormat, matches
from spark_prof.kernels.bench.vllm_peers import (
    marlin,
    marlin_experts,
    small_products,
    triton_experts,
)
from spark_prof.kernels.candidate import (
    Abstained,
    Candidate,
    ExpertsLayer,
    LinearLayer,
    Replacement,
    check_taken,
)
from spark_prof.kernels.check.inputs import Weight
from spark_prof.kernels.check.oracles import moe_oracle, routing_oracle
from spark_prof.kernels.kernel_error import reason
from spark_prof.kernels.operands import architecture, multiprocessors
from spark_prof.kernels.registry import ReplacementKernel
from spark_prof.kernels.tuning import Work

CUBLAS, MARLIN = "cuBLAS BF16", "vLLM Marlin"

Compute = Callable[..., torch.Tensor]
"""Computes with x, of experts the logits, and the number of a copy of the weights."""

Make = Callable[[Any, int], Compute]


def _cublas(weight: Weight, copies: int) -> Compute:
    transposed = [matrix.t() for matrix in clones(decoded(weight), copies)]
    return lambda x, number: torch.mm(x, transposed[number])


def _peers(kind: Kind, weights: Any) -> Mapping[str, Make]:
    """Whoever else computes with such weights."""
    if kind == "moe":
        return {MARLIN: marlin_experts, "vLLM Triton": triton_experts}
    if not isinstance(weights, torch.Tensor):
        return {CUBLAS: _cublas, MARLIN: marlin}
    return {CUBLAS: _cublas, **small_products(weights)}


DENSE_TOLERANCE = 0.01
"""Relative L2. Rounding a sum to BF16 gives 0.0017; a scale that is wrong in one row of a hundred
gives 0.1."""
EXPERTS_TOLERANCE = 0.02
"""What lies between the products is rounded to BF16, vLLM's routing weights too."""

_ROWS_AT_ONCE = 1 << 26
"""Elements of the weight that are multiplied in float64 at a time."""

_LARGEST_LOGIT = 4.0


def run(request: Request, device: torch.device) -> Iterator[Cell | LeftOut]:
    """Times everything on a GPU, and goes on after whatever fails.

    On a processor the package's kernels are emulated, and no time means anything.
    """
    begun = time.perf_counter()
    broken = ""
    for what, cells in _tasks(request, device):
        passed = time.perf_counter() - begun
        if broken or passed > request.seconds:
            yield LeftOut(what, broken or f"{request.seconds:.0f} seconds had passed")
            continue
        try:
            yield from cells
        except Exception as failure:
            yield LeftOut(what, reason(failure))
        broken = _broken(device)


def _tasks(request: Request, device: torch.device) -> Iterator[tuple[str, Iterator[Cell]]]:
    """Each shape with what times it; nothing is begun before its cells are asked for."""
    for shape, form in request.pieces():
        if isinstance(shape, ExpertsShape):
            yield f"experts of {shape.model}", race_experts(shape, request, device)
        else:
            what = f"dense {form} {shape.rows} x {shape.columns}"
            yield what, race_dense(shape, form, request, device)


def _broken(device: torch.device) -> str:
    """Frees what the last shape took; why no other can be begun, empty if one can."""
    if device.type != "cuda":
        return ""
    try:
        torch.cuda.synchronize(device)
        gc.collect()
        torch.cuda.empty_cache()
    except RuntimeError as failure:
        return f"the GPU no longer answers ({reason(failure)})"
    return ""


@dataclass(frozen=True)
class Inputs:
    """Of all calls with one number of tokens, the number of the call being the first dimension."""

    source: torch.Tensor  # bfloat16 [calls, M, K]
    given: tuple[torch.Tensor, ...]  # where a call's are written, and of experts the logits
    copies: int  # of the weights

    def call(self, compute: Compute) -> Call:
        """What does the call of a number."""
        return lambda number: compute(*(each[number] for each in self.given), number % self.copies)


class _Field:
    """All that take part where weights are the same: each made once, then raced with any inputs.

    One of the package's kernels at most is held against the others; of several each has a field.
    """

    def __init__(
        self,
        request: Request,
        kind: Kind,
        kernel: ReplacementKernel | None,
        weights: Any,
        copies: int,
    ) -> None:
        self._request, self._kernel = request, kernel
        self._ours: list[Replacement] = []
        if kernel is not None and matches(OURS, request.contestants):
            self._ours = _replacements(kernel.candidate(), weights, copies)
        own = request.own
        makes: dict[str, Make] = {} if own is None else {own.name: partial(_make_own, own)}
        makes |= {
            name: make
            for name, make in _peers(kind, weights).items()
            if matches(name, request.contestants)
        }
        self._others = {
            name: prepared(name, partial(make, weights, copies)) for name, make in makes.items()
        }

    def raced(self, cell: Cell, inputs: Inputs, expected: torch.Tensor, tolerance: float) -> Cell:
        """A piece of work with how all did at it; the package's kernel in its best form."""

        def write(number: int) -> torch.Tensor:
            return inputs.given[0][number].copy_(inputs.source[number])

        def error(outputs: Sequence[torch.Tensor]) -> float:
            return largest_relative_l2(outputs, expected)

        setting = Setting(len(expected), write, error, tolerance, expected.device)
        entered: dict[str, Call | Result] = {}
        config: dict[str, int] = {}
        if self._ours:
            chosen = self._config(cell.work, inputs, setting)
            entered[OURS] = self._call(chosen, inputs)
            config = {} if chosen is None else asdict(chosen)
        for name, other in self._others.items():
            entered[name] = other if isinstance(other, Result) else inputs.call(other)
        own = self._request.own
        results = race(entered, setting, self._request.seconds_each)
        subject = OURS if own is None else own.name
        return replace(cell, results=results, config=config, subject=subject)

    def _call(self, config: Any, inputs: Inputs) -> Call:
        return inputs.call(_computing(self._ours, None, config))

    def _config(self, work: Work, inputs: Inputs, setting: Setting) -> Any:
        if self._kernel is None or not self._kernel.tuned_as:
            return None
        processors = multiprocessors(setting.device)
        default = self._kernel.function("config_for")(work, processors)
        if not self._request.tune:
            return known_config(default, work, architecture(setting.device))
        call_of = partial(self._call, inputs=inputs)
        return best(default, work, processors, call_of, setting)


def race_dense(
    shape: DenseShape,
    format: WeightFormat,  # noqa: A002 - the word of the formats
    request: Request,
    device: torch.device,
) -> Iterator[Cell]:
    """Times one weight with each number of tokens."""
    weight = random_weight(format, (shape.rows, shape.columns), device)
    size = stored_bytes(weight)
    planned = plan(size, cache_bytes(device))
    exact = decoded(weight)
    for kernel in request.listed("dense", format):
        field = _Field(request, "dense", kernel, weight, planned.copies)
        for count in request.tokens:
            dice = torch.Generator(device).manual_seed(count)
            size_x = (planned.calls, count, shape.columns)
            x = torch.randn(size_x, dtype=torch.bfloat16, device=device, generator=dice)
            cell = Cell(
                kind="dense",
                work=Work(_tuned_as(kernel, "dense"), format, shape.rows, shape.columns, count),
                label=shape.label,
                weight_bytes=size,
                bytes=size + 2 * count * (shape.rows + shape.columns),
                is_lm_head=shape.is_lm_head,
                results=(),
                recorded=request.ran.get(((shape, format), count)),
            )
            inputs = Inputs(x, (torch.empty_like(x),), planned.copies)
            yield field.raced(cell, inputs, exact_products(x, exact), DENSE_TOLERANCE)


def _tuned_as(kernel: ReplacementKernel | None, kind: Kind) -> str:
    return (kernel.tuned_as or kernel.check) if kernel is not None else kind


def exact_products(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """The float64 products of all calls' activations, kept as float32."""
    rows, columns = weight.shape
    flat = x.flatten(0, 1).to(torch.float64)
    out = torch.empty((flat.shape[0], rows), dtype=torch.float32, device=x.device)
    step = max(1, _ROWS_AT_ONCE // columns)
    for begin in range(0, rows, step):
        out[:, begin : begin + step] = flat @ weight[begin : begin + step].to(torch.float64).t()
    return out.unflatten(0, x.shape[:2])


def race_experts(shape: ExpertsShape, request: Request, device: torch.device) -> Iterator[Cell]:
    """Times the experts of one model with each number of tokens, as `race_dense` a weight."""
    layer = random_experts(shape, device)
    each = bytes_of_expert(layer)
    all_inputs = {count: expert_inputs(shape, each, count, device) for count in request.tokens}
    copies = max((inputs.copies for inputs in all_inputs.values()), default=1)
    references = exact_experts(layer, list(all_inputs.values()))
    for kernel in request.listed("moe", shape.format):
        field = _Field(request, "moe", kernel, layer, copies)
        for (count, inputs), expected in zip(all_inputs.items(), references, strict=True):
            used = round(_mean_distinct(inputs.given[1], shape.top_k) * each)
            sizes = (2 * shape.intermediate, shape.hidden, count, shape.experts, shape.top_k)
            cell = Cell(
                kind="moe",
                work=Work(_tuned_as(kernel, "moe"), shape.format, *sizes),
                label=shape.model,
                weight_bytes=used,
                bytes=used + 2 * count * (2 * shape.hidden + shape.experts),
                is_lm_head=False,
                results=(),
                recorded=request.ran.get(((shape, shape.format), count)),
            )
            yield field.raced(cell, replace(inputs, copies=copies), expected, EXPERTS_TOLERANCE)


def expert_inputs(shape: ExpertsShape, each: int, count: int, device: torch.device) -> Inputs:
    """Random ones for experts of `each` bytes.

    A token's logits all differ, or contestants could rightly differ in experts.
    """
    dice = torch.Generator(device).manual_seed(count)
    expected = shape.experts * (1 - (1 - shape.top_k / shape.experts) ** count)
    planned = plan(math.ceil(expected * each), cache_bytes(device), shape.experts * each)
    size = (planned.calls, count, shape.hidden)
    x = torch.randn(size, dtype=torch.bfloat16, device=device, generator=dice)
    order = torch.rand((*size[:2], shape.experts), device=device, generator=dice).argsort(-1)
    steps = torch.linspace(-_LARGEST_LOGIT, _LARGEST_LOGIT, shape.experts, device=device)
    return Inputs(x, (torch.empty_like(x), steps.to(torch.bfloat16)[order]), planned.copies)


def exact_experts(layer: ExpertsLayer, inputs: Sequence[Inputs]) -> list[torch.Tensor]:
    """The exact output of all calls: [calls, M, H] for each number of tokens.

    All are computed at once, so that each expert is decoded once.
    """
    x = torch.cat([its.source.flatten(0, 1) for its in inputs])
    logits = torch.cat([its.given[1].flatten(0, 1) for its in inputs])
    chosen, shares = routing_oracle(logits, layer.router)
    exact = moe_oracle(x, chosen, shares, layer).value
    sizes = [its.source.shape[:2] for its in inputs]
    parts = exact.split([size.numel() for size in sizes])
    return [part.unflatten(0, size) for part, size in zip(parts, sizes, strict=True)]


def _mean_distinct(logits: torch.Tensor, top_k: int) -> float:
    """How many experts a call reads."""
    chosen = logits.to(torch.float32).topk(top_k, -1).indices.flatten(1)
    return sum(len(call.unique()) for call in chosen) / len(chosen)


def _replacements(candidate: Candidate, weights: Any, copies: int) -> list[Replacement]:
    """A kernel built for each copy of the weights, which need not outlive it."""
    built = []
    for number in range(copies):
        name, own = f"model.layers.{number}", deepcopy(weights)
        if isinstance(own, ExpertsLayer):
            router = replace(own.router, name=f"{name}.mlp")
            built.append(candidate.build(replace(own, name=router.name, router=router)))
        else:
            built.append(
                candidate.build(LinearLayer(f"{name}.{candidate.slot}", candidate.slot, own))
            )
    return built


def _make_own(own: Candidate, weights: Any, copies: int) -> Compute:
    replacements = _replacements(own, weights, copies)
    if any(replacement.bits == "changed" for replacement in replacements):
        raise Abstained("it changes the weights' bits: the others compute something else")
    return _computing(replacements)


def _computing(replacements: Sequence[Replacement], *more: Any) -> Compute:
    """What calls the replacement of a number; the package's own take more arguments."""

    def compute(x: torch.Tensor, *rest: Any) -> torch.Tensor:
        *logits, number = rest
        check_taken(replacements[number], len(x))
        result: torch.Tensor = replacements[number].run(x, *(logits or (None,)), *more)
        return result

    return compute

"""The cases of somebody's own kernel: `spark-prof kernels check FILE.py:FUNCTION --slot SLOT`.

Beside the results it is tried whether it remembers its arguments, or keeps memory.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Literal

import torch

from spark_prof.kernels.candidate import Candidate, Format
from spark_prof.kernels.check.called import Called
from spark_prof.kernels.check.cases import (
    EPSILON,
    SMALL,
    SMALL_EXPERTS,
    DenseCase,
    MoeCase,
    NormCase,
    RoutingCase,
    dense_cases,
    moe_cases,
    norm_cases,
    routing_cases,
    run_dense_case,
    run_moe_case,
    run_norm_case,
    run_routing_case,
)
from spark_prof.kernels.check.inputs import (
    Recipe,
    Sizes,
    Tokens,
    make_activations,
    make_layer,
    make_logits,
    make_weight,
)
from spark_prof.kernels.check.oracles import RoutingRule
from spark_prof.kernels.check.runner import Cases, run_cases
from spark_prof.kernels.check.verdict import Judgement, Verdict, same_bits

Run = Callable[[torch.Tensor], torch.Tensor]
"""From x to the result: what else a kernel takes stays the same."""

Probe = Callable[[Run, torch.Tensor], str]
"""Tells in words what is wrong, empty if nothing is."""

_FORMATS: tuple[Format, ...] = ("nvfp4", "mxfp4", "fp8", "bf16")
_EXPERT_FORMATS: tuple[Format, ...] = ("nvfp4", "mxfp4", "bf16")

_NOT_OF_CHECKPOINTS: tuple[Recipe, ...] = ("NaN scales", "negative scales", "scales apart in a row")
"""Weights that the package's kernels are tried with and that no model has."""

_FEW = range(1, 17)
_MANY = (17, 130)
"""Tokens, beside 1 to 16, for kernels that take as many."""

_OTHER = (64, 320)
"""Rows and columns of small matrices, beside those of `dense_cases`."""

_SHAPES = {
    "qkv": ((5120, 2880), (5120, 2048)),
    "o": ((2880, 4096), (2048, 4096)),
    "mlp": ((3712, 2688), (2688, 1856)),
    "router": ((32, 2880), (128, 2048)),
    "lm_head": ((151936, 2048),),
}
"""Weights, (N, K), of gpt-oss, Qwen3-30B-A3B and Nemotron-3-Nano. The slot router has the matrix
that makes the logits, and the choice by them."""
_SMALL_SHAPES = ((32, 2880), (40, 1856))
_SIZES = (Sizes(16, 4, 2880, 2880), Sizes(32, 8, 2048, 768))
_SMALL_SIZES = (Sizes(4, 2, 576, 288),)
_TOKENS = {"cpu": (3,), "cuda": (1, 4, 16)}

_ROWS, _COLUMNS, _CALLS = 48, 448, 4


def check_own(candidate: Candidate, device: str) -> Iterator[Verdict]:
    """Runs the cases one by one and yields what each showed; what it abstains from is skipped."""
    yield from run_cases(candidate.name, own_cases(candidate, device), device, own=True)


def own_cases(candidate: Candidate, device: str) -> Cases:
    """The cases of a candidate's slot; for each it is built anew.

    A kernel of experts may round to bfloat16 wherever vLLM's kernels do; one that changes the
    weights' bits is held against its own error alone.
    """
    slot = candidate.slot
    for case in _cases(slot, device):
        yield case.label, partial(_run, case, candidate, device)
    formats = {"norm": _FORMATS[-1:], "router": _FORMATS[-1:], "moe": _EXPERT_FORMATS}
    for kind, (what, probe) in product(formats.get(slot, _FORMATS), PROBES.items()):
        yield f"{kind}, {what}", partial(_probe, kind, probe, 3, candidate, device)
    for kind, tokens in product(formats.get(slot, _FORMATS), (*_FEW, *_MANY)):
        label = f"{kind}, {tokens} tokens, other values in the same memory"
        yield label, partial(_probe, kind, reads_when_it_runs, tokens, candidate, device)


Case = NormCase | RoutingCase | DenseCase | MoeCase


def _cases(slot: str, device: str) -> Iterator[Case]:
    if slot == "norm":
        yield from norm_cases()
    elif slot == "moe":
        yield from _experts(device)
    elif slot != "router":
        yield from _matrices(slot, device, _FORMATS)
    else:
        # A softmax in float32 is 0 for most of these far apart, and of zeros any may be chosen.
        for case in routing_cases():
            if case.logits != "far apart" or "sigmoid" in case.scheme:
                yield case
        for tokens in (*_FEW, *_MANY):
            if tokens != 5:
                yield RoutingCase(32, 4, tokens, "the same experts")
            yield RoutingCase(32, 4, tokens, dtype=torch.float32, scheme="softmax of all")
        yield from _matrices(slot, device, _FORMATS[-1:])


def _matrices(slot: str, device: str, formats: tuple[Format, ...]) -> Iterator[DenseCase]:
    shapes = _SMALL_SHAPES if device == "cpu" else _SHAPES[slot]
    recipes: tuple[Recipe, ...] = ("plain", "one element a row")
    for kind in formats:
        larger = [
            DenseCase(kind, shape, tokens, recipe, bias=tokens == 4)
            for shape, recipe, tokens in product(shapes, recipes, _TOKENS[device])
        ]
        many = [DenseCase(kind, SMALL, tokens, bias=True) for tokens in _MANY]
        # The other way round than in `dense_cases`, and tokens that those have for one number.
        many += [DenseCase(kind, _OTHER, tokens, bias=tokens % 3 != 1) for tokens in _FEW]
        edges: tuple[Tokens, ...] = ("zeros", "apart")
        many += [DenseCase(kind, _OTHER, n, x=x) for n, x in product(_FEW, edges)]
        for case in (*dense_cases(kind), *many, *larger):
            extreme = kind == "mxfp4" and case.recipe == "scales apart by row"
            if not (case.recipe in _NOT_OF_CHECKPOINTS or extreme or case.layout != "contiguous"):
                yield replace(case, may_refuse=False)


def _experts(device: str) -> Iterator[MoeCase]:
    sizes = _SMALL_SIZES if device == "cpu" else _SIZES
    activations: tuple[Literal["silu", "swiglu"], ...] = ("silu", "swiglu")
    for kind in _EXPERT_FORMATS:
        larger = [
            MoeCase(kind, each, tokens, activation)
            for each, activation, tokens in product(sizes, activations, _TOKENS[device])
        ]
        many = [MoeCase(kind, SMALL_EXPERTS, tokens, "swiglu") for tokens in _MANY]
        for tokens in _FEW:
            # The other way round than in `moe_cases`.
            activation = activations[(tokens + 1) % 2]
            many.append(MoeCase(kind, SMALL_EXPERTS, tokens, activation))
            many.append(MoeCase(kind, SMALL_EXPERTS, tokens, activation, x="zeros"))
            if tokens != 12:
                many.append(MoeCase(kind, SMALL_EXPERTS, tokens, activation, "the same experts"))
        all_of = Sizes(64, 4, 192, 96)
        many.append(MoeCase(kind, all_of, 16, "silu", "every expert in turn"))
        for case in (*moe_cases(kind), *many, *larger):
            if case.recipe not in _NOT_OF_CHECKPOINTS and case.layout == "contiguous":
                yield case


def _run(case: Case, candidate: Candidate, device: str) -> Judgement:
    called = Called(candidate)
    if isinstance(case, NormCase):
        return run_norm_case(case, called.norm, device)
    if isinstance(case, RoutingCase):
        return run_routing_case(case, called.route, device)
    if isinstance(case, DenseCase):
        return run_dense_case(case, called.linear, device, called.judge)
    return run_moe_case(case, called.experts, device, called.judge, rounded_between=True)


def _probe(kind: Format, probe: Probe, tokens: int, candidate: Candidate, device: str) -> Judgement:
    run, x = _work(kind, candidate, device, tokens)
    run(x)
    return Judgement(None, probe(run, x))


def reads_when_it_runs(run: Run, x: torch.Tensor) -> str:
    """Whether the same tensor with other values in it gives another result, in a graph too."""
    first = run(x).clone()
    other = x.flip(-1).contiguous()
    expected = run(other.clone()).clone()
    if same_bits(first, expected):
        return "other activations give the same result"
    if x.is_cuda:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            result = run(x)
        x.copy_(other)
        graph.replay()
        torch.cuda.synchronize(x.device)
        if not same_bits(result, expected):
            return "a CUDA graph's replay does not compute with the activations of that moment"
        return ""
    x.copy_(other)
    same = same_bits(run(x), expected)
    return "" if same else "it does not compute with the activations of the moment"


def _keeps_no_memory(run: Run, x: torch.Tensor) -> str:
    before = _held(x.device)
    for _ in range(_CALLS):
        run(x)
    grown = _held(x.device) - before
    return f"{_CALLS} calls keep {grown} bytes" if grown > 0 else ""


PROBES: dict[str, Probe] = {
    "the same tensor with other values": reads_when_it_runs,
    "memory after a call": _keeps_no_memory,
}
"""In words, what each tries."""


def _held(device: torch.device) -> int:
    """Bytes of all tensors; on a GPU what its allocator has given away."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        return int(torch.cuda.memory_allocated(device))
    # Others, such as those of a compiler, have no memory.
    real = (torch.Tensor, torch.nn.Parameter)
    tensors = [each for each in gc.get_objects() if type(each) in real]
    storages = {each.untyped_storage().data_ptr(): each.untyped_storage() for each in tensors}
    return sum(storage.nbytes() for storage in storages.values())


def _work(kind: Format, candidate: Candidate, device: str, tokens: int) -> tuple[Run, torch.Tensor]:
    called, slot = Called(candidate), candidate.slot
    if slot == "router":
        # Of flipped logits the weights are the same, the experts others.
        logits = make_logits("plain", tokens, 32, torch.bfloat16, device)
        return lambda logits: called.route(logits, 4, RoutingRule())[0], logits
    if slot == "moe":
        return _mix(kind, called, device, tokens)
    x = make_activations("plain", tokens, _COLUMNS, 2, device)
    if slot == "norm":
        weight = make_activations("plain", 1, _COLUMNS, 3, device)[0]
        norm = called.norm(weight, EPSILON)
        return lambda x: norm(x, None)[0], x
    compute = called.linear(make_weight(kind, "plain", (_ROWS, _COLUMNS), 1, device))

    def multiply(x: torch.Tensor) -> torch.Tensor:
        out = x.new_empty((len(x), _ROWS))
        compute(x, None, out)
        return out

    return multiply, x


def _mix(kind: Format, called: Called, device: str, tokens: int) -> tuple[Run, torch.Tensor]:
    sizes = Sizes(8, 3, 192, 96)
    compute = called.experts(make_layer(kind, sizes, "silu", device))
    logits = make_logits("plain", tokens, sizes.experts, torch.bfloat16, device)

    def mix(x: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        compute(x, logits, out)
        return out

    return mix, make_activations("plain", tokens, sizes.hidden, 2, device)

"""What a kernel must not do whatever it computes: remember its arguments, or keep memory."""

from __future__ import annotations

import gc
from collections.abc import Callable

import torch

from spark_prof.kernels.check.activations import make_activations
from spark_prof.kernels.check.moe_cases import MoeCase, Sizes, make_layer
from spark_prof.kernels.check.oracles import RoutingRule
from spark_prof.kernels.check.routing_cases import make_logits
from spark_prof.kernels.check.verdict import Judgement, same_bits
from spark_prof.kernels.check.weights import Format, make_weight
from spark_prof.swaps.check.called import Called, run_replacement
from spark_prof.swaps.check.norm_cases import EPSILON
from spark_prof.swaps.layers import NormLayer

Run = Callable[[torch.Tensor], torch.Tensor]
"""From x to the result: what else a kernel takes stays the same."""

Probe = Callable[[Run, torch.Tensor], str]
"""Tells in words what is wrong, empty if nothing is."""

_ROWS, _COLUMNS, _CALLS = 48, 448, 4


def run_probe(
    slot: str, kind: Format, called: Called, device: str, probe: Probe, tokens: int
) -> Judgement:
    """Tries one of `PROBES` on a small layer of a format, with that many tokens."""
    run, x = _work(slot, kind, called, device, tokens)
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


def _work(
    slot: str, kind: Format, called: Called, device: str, tokens: int
) -> tuple[Run, torch.Tensor]:
    if slot == "router":
        # Of flipped logits the weights are the same, the experts others.
        logits = make_logits("plain", tokens, 32, torch.bfloat16, device)
        return lambda logits: called.route(logits, 4, RoutingRule())[0], logits
    if slot == "moe":
        return _experts(kind, called, device, tokens)
    x = make_activations("plain", tokens, _COLUMNS, 2, device)
    if slot == "norm":
        weight = make_activations("plain", 1, _COLUMNS, 3, device)[0]
        norm = called.build(NormLayer("model.norm", weight, EPSILON))
        return lambda x: run_replacement(norm, (x, None), [(tuple(x.shape), x.dtype)])[0], x
    compute = called.linear(make_weight(kind, "plain", (_ROWS, _COLUMNS), 1, device))

    def multiply(x: torch.Tensor) -> torch.Tensor:
        out = x.new_empty((len(x), _ROWS))
        compute(x, None, out)
        return out

    return multiply, x


def _experts(kind: Format, called: Called, device: str, tokens: int) -> tuple[Run, torch.Tensor]:
    assert kind != "fp8"
    sizes = Sizes(8, 3, 192, 96)
    compute = called.experts(make_layer(MoeCase(kind, sizes, tokens), device), sizes.top_k)
    logits = make_logits("plain", tokens, sizes.experts, torch.bfloat16, device)

    def mix(x: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        compute(x, logits, sizes.top_k, out)
        return out

    return mix, make_activations("plain", tokens, sizes.hidden, 2, device)

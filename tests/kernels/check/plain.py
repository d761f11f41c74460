"""The kernels' work in plain PyTorch, to try the gate on: right, or wrong on purpose."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

from spark_prof.kernels.candidate import (
    Builder,
    Candidate,
    ExpertsLayer,
    Layer,
    LinearLayer,
    Replacement,
    RouterLayer,
)
from spark_prof.kernels.check.cases import Case, DenseCase, MoeCase
from spark_prof.kernels.check.inputs import decode
from spark_prof.kernels.check.oracles import constants
from spark_prof.kernels.check.runner import attempt, check, run_case
from spark_prof.kernels.check.verdict import Verdict


def said(case: Case, builder: Builder, device: str = "cpu", own: bool = False) -> str:
    """What the gate says of a kernel in one case; nothing if it is right."""
    slot = "o" if isinstance(case, DenseCase) else "moe" if isinstance(case, MoeCase) else "router"
    candidate = Candidate("k", slot, builder, own=own)
    return attempt(partial(run_case, case, candidate, device), own)[1].detail


def some(
    slot: str, builder: Builder, wanted: Callable[[str], bool], device: str = "cpu"
) -> list[Verdict]:
    """The verdicts of somebody's own kernel in those cases alone whose label is wanted."""
    found = list(check(Candidate("k", slot, builder), device, wanted))
    assert found
    return found


def kept(run: Callable[..., object]) -> Replacement:
    """A replacement that takes any number of tokens."""
    return Replacement(run, 0, "kept")


def plain_linear(
    after: Callable[[torch.Tensor], torch.Tensor] = lambda result: result,
) -> Builder:
    """A linear layer; `after` is done to the float32 result."""

    def build(layer: Layer) -> Replacement:
        assert isinstance(layer, LinearLayer)
        decoded = decode(layer.weight)

        def compute(x: torch.Tensor, bias: torch.Tensor | None, out: torch.Tensor) -> object:
            # In float64, as float32 cannot hold all that a tensor core's exact products are.
            sums = (x.double() @ decoded.T).float()
            if bias is not None:
                sums = sums + bias.float()
            return out.copy_(after(sums).to(torch.bfloat16))

        return kept(compute)

    return build


def plain_route(logits: torch.Tensor, router: RouterLayer) -> tuple[torch.Tensor, torch.Tensor]:
    """The weights of the chosen experts, in float32, and those; NaN counts as largest."""
    values = logits.float()
    sigmoid = router.scoring == "sigmoid"
    scores = torch.sigmoid(values) if sigmoid else values
    choice = scores if router.correction is None else scores + router.correction
    experts = choice.sort(stable=True, dim=-1, descending=True).indices[:, : router.top_k]
    parts = scores if sigmoid else torch.exp(values - values.amax(-1, keepdim=True))
    weights = parts.gather(1, experts)
    if router.renormalize:
        weights = weights / weights.sum(-1, keepdim=True)
    elif not sigmoid:
        weights = weights / parts.sum(-1, keepdim=True)
    return weights * router.scale, experts.int()


def plain_moe() -> Builder:
    """A block of experts in float32, its hidden activations rounded to bfloat16."""

    def build(layer: Layer) -> Replacement:
        assert isinstance(layer, ExpertsLayer)
        gate_up, down = decode(layer.gate_up), decode(layer.down)
        alpha, limit, shift = constants(layer.activation)

        def expert(x: torch.Tensor, number: int) -> torch.Tensor:
            both = (gate_up[number] @ x.double()).float()
            if layer.gate_up_bias is not None:
                both = both + layer.gate_up_bias[number].float()
            gate, up = both.chunk(2)
            gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
            inner = gate * torch.sigmoid(alpha * gate) * (up + shift)
            result = (down[number] @ inner.to(torch.bfloat16).double()).float()
            if layer.down_bias is not None:
                result = result + layer.down_bias[number].float()
            return result

        def compute(x: torch.Tensor, logits: torch.Tensor, out: torch.Tensor) -> object:
            weights, experts = plain_route(logits, layer.router)
            total = torch.zeros(x.shape)
            for token, chosen in enumerate(experts.tolist()):
                for place, number in enumerate(chosen):
                    total[token] += weights[token, place] * expert(x[token], number)
            return out.copy_(total.to(torch.bfloat16))

        return kept(compute)

    return build

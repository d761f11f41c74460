"""The kernels' work in plain PyTorch, to try the gate on: right, or wrong on purpose."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

from spark_prof.kernels.candidate import (
    Builder,
    ExpertsLayer,
    KernelCandidate,
    Layer,
    LinearLayer,
    Replacement,
)
from spark_prof.kernels.check.cases import DenseCase, MoeCase
from spark_prof.kernels.check.inputs import decode
from spark_prof.kernels.check.normed_cases import NormedCase
from spark_prof.kernels.check.runner import AnyCase, attempt, check, run_case
from spark_prof.kernels.check.verdict import CheckVerdict
from spark_prof.swaps.templates import experts, router


def said(case: AnyCase, builder: Builder, device: str = "cpu", own: bool = False) -> str:
    """What the gate says of a kernel in one case; nothing if it is right."""
    slot = "o" if isinstance(case, DenseCase) else "moe" if isinstance(case, MoeCase) else "router"
    slot = "layer" if isinstance(case, NormedCase) else slot
    candidate = KernelCandidate("k", slot, builder, is_custom=own)
    return attempt(partial(run_case, case, candidate, device), own)[1].detail


def some(
    slot: str, builder: Builder, wanted: Callable[[str], bool], device: str = "cpu"
) -> list[CheckVerdict]:
    """The verdicts of somebody's own kernel in those cases alone whose label is wanted."""
    found = list(check(KernelCandidate("k", slot, builder), device, wanted))
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


plain_route = router._by_torch
"""The template's: weights of the chosen experts, float32, and those; NaN counts as largest."""


def plain_moe(layer: Layer) -> Replacement:
    """A block of experts in float32, its hidden activations rounded to bfloat16: the template's."""
    assert isinstance(layer, ExpertsLayer)
    made = experts._plain(layer, *(decode(w).float() for w in (layer.gate_up, layer.down)))

    def compute(x: torch.Tensor, logits: torch.Tensor, out: torch.Tensor) -> object:
        return out.copy_(made.run(x, logits))

    return kept(compute)

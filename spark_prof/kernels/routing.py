"""Which experts each of up to 16 tokens takes, and who shares an expert."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from spark_prof.kernels.candidate import Layer, Replacement, RouterLayer, Scoring
from spark_prof.kernels.kernel_error import KernelError
from spark_prof.kernels.operands import LARGEST_BATCH, refuse_gradient
from spark_prof.kernels.runtime.code import KernelCode
from spark_prof.kernels.runtime.launch import launch

LISTED = (
    {
        "names": ("router-topk",),
        "layer": "choice",
        "does": "the k experts of largest score of each token, and their weights",
        "formats": ("bf16", "fp32"),
        "shapes": "up to 512 experts, k up to 16",
        "operation": "route",
        "reference": "routing_oracle",
        "bytes": "w M E + 8 M k",
        "tolerance": "experts equal; weights within some units in the last place of float32",
        "check": "routing",
    },
)
"""For `registry.py`."""

MOST_CHOICES = 16
MOST_EXPERTS = 512

_ENTRIES = LARGEST_BATCH * MOST_CHOICES
_PLAN = 1 + _ENTRIES + (_ENTRIES + 1) + _ENTRIES  # the ints of `Plan` in routing.cuh


@dataclass(frozen=True, eq=False)
class Routing:
    """What a router decided."""

    experts: torch.Tensor  # int32 [M, k], each token's experts, the best first
    weights: torch.Tensor  # float32 [M, k], what each expert's output is multiplied with
    # Int32, the active experts and their tokens, as `Plan` in `cuda/routing.cuh`.
    plan: torch.Tensor


def unwritten(tokens: int, top_k: int, device: torch.device) -> Routing:
    """Room for what a kernel decides for so many tokens."""
    return Routing(
        torch.empty((tokens, top_k), dtype=torch.int32, device=device),
        torch.empty((tokens, top_k), dtype=torch.float32, device=device),
        torch.empty(_PLAN, dtype=torch.int32, device=device),
    )


def check_choice(experts: int, top_k: int) -> None:
    """Refuses as many experts, or chosen ones, as no kernel here takes."""
    if not 1 <= experts <= MOST_EXPERTS:
        raise KernelError(f"{experts} experts: up to {MOST_EXPERTS} can be routed to")
    if not 1 <= top_k <= min(MOST_CHOICES, experts):
        raise KernelError(f"cannot choose {top_k} of {experts} experts; 1 to {MOST_CHOICES} can be")


def check_correction(
    correction: torch.Tensor | None, experts: int, scoring: Scoring, device: torch.device
) -> None:
    """Refuses a correction that is not float32 [E] for sigmoids."""
    if correction is None:
        return
    layout = correction.dtype, tuple(correction.shape), correction.device
    if layout != (torch.float32, (experts,), device) or not correction.is_contiguous():
        raise KernelError(
            f"the correction must be contiguous float32 [{experts}] on {device}, not"
            f" {layout[0]} {layout[1]} on {layout[2]}"
        )
    if scoring != "sigmoid":
        raise KernelError("a correction goes with scoring='sigmoid' only")


def route(
    logits: torch.Tensor,
    top_k: int,
    renormalize: bool = True,
    scoring: Scoring = "softmax",
    correction: torch.Tensor | None = None,
    scale: float = 1.0,
) -> Routing:
    """Gives each token the `top_k` experts of largest score; of equal ones those of lower number.

    Args:
        logits: bfloat16 or float32 [M, E], M from 1 to 16, E up to 512, contiguous columns.
        renormalize: divide the weights of a token by their sum; with softmax this is the softmax
            over the chosen logits.
        scoring: `sigmoid` as in DeepSeek-V3 and Nemotron.
        correction: float32 [E], added to sigmoids for the choice, not for the weights.
    """
    tokens, experts = logits.shape if logits.ndim == 2 else (0, 0)
    if not (1 <= tokens <= LARGEST_BATCH and 1 <= experts <= MOST_EXPERTS):
        raise KernelError(
            f"logits of shape {tuple(logits.shape)}: this kernel routes 1 to {LARGEST_BATCH} tokens"
            f" to up to {MOST_EXPERTS} experts"
        )
    check_choice(experts, top_k)
    if logits.dtype not in (torch.bfloat16, torch.float32) or logits.stride(1) != 1:
        raise KernelError(
            f"logits are {logits.dtype} with strides {logits.stride()}; they must be bfloat16 or"
            " float32, contiguous in a row"
        )
    device = logits.device
    check_correction(correction, experts, scoring, device)
    refuse_gradient("logits", logits)
    routing = unwritten(tokens, top_k, device)
    launch(
        _code(experts, top_k, logits.dtype == torch.float32, scoring),
        (1, 1, 1),
        LARGEST_BATCH * 32,
        (
            logits,
            correction,
            routing.experts,
            routing.weights,
            routing.plan,
            tokens,
            logits.stride(0),
            int(renormalize),
            float(scale),
        ),
    )
    return routing


def routed(logits: torch.Tensor, router: RouterLayer) -> Routing:
    """What `route` decides for a layer."""
    return route(
        logits, router.top_k, router.renormalize, router.scoring, router.correction, router.scale
    )


def build(layer: Layer) -> Replacement:
    """The kernel for a choice of experts, as the registry's candidates have it."""
    assert isinstance(layer, RouterLayer)

    def run(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        got = routed(logits, layer)
        return got.weights, got.experts

    return Replacement(run, LARGEST_BATCH, "kept")


def codes() -> Sequence[KernelCode]:
    """What is compiled for typical models."""
    return [
        _code(32, 4, False, "softmax"),
        _code(128, 8, True, "softmax"),
        _code(512, 10, False, "softmax"),
        _code(128, 6, True, "sigmoid"),
    ]


def _code(experts: int, top_k: int, float_logits: bool, scoring: Scoring) -> KernelCode:
    defines = (
        ("EXPERTS", experts),
        ("CHOICES", top_k),
        ("FLOAT_LOGITS", int(float_logits)),
        ("SIGMOID", int(scoring == "sigmoid")),
    )
    return KernelCode("routing.cu", "route", defines)

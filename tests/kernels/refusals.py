"""Operands that do not fit: each of the package's kernels refuses them, wherever it would run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from itertools import product

import torch

from spark_prof.kernels.candidate import AttentionLayer, KernelCandidate, RouterLayer
from spark_prof.kernels.check.attention_cases import AttentionCase
from spark_prof.kernels.check.cases import DenseCase, MoeCase, NormCase, RoutingCase
from spark_prof.kernels.check.inputs import Sizes
from spark_prof.kernels.check.normed_cases import NormedCase
from spark_prof.kernels.check.normed_experts_cases import NormedExpertsCase
from spark_prof.kernels.check.normed_mlp_cases import NormedMlpCase
from spark_prof.kernels.check.runner import AnyCase
from spark_prof.kernels.check.w4a4_cases import W4a4Case
from spark_prof.kernels.kernel_error import KernelError
from spark_prof.kernels.operands import LARGEST_BATCH
from spark_prof.kernels.registry import by_check

Attempts = Iterator[tuple[str, Callable[[], str]]]
"""What is tried, in words, each with what tries it and says what was wrong."""

Change = Callable[[torch.Tensor], torch.Tensor]

_ANY_OPERAND: Mapping[str, Change] = {
    "in float64": lambda operand: operand.to(torch.float64),
    "with a column less": lambda operand: operand[..., :-1].contiguous(),
    "with a dimension more": lambda operand: operand[None],
}


def _row_operand(most: int) -> dict[str, Change]:
    return {
        "of no tokens": lambda operand: operand[:0],
        f"of {most + 1} tokens": lambda operand: operand[:1].repeat(most + 1, 1),
        "of one dimension": lambda operand: operand[0],
    }


def all_refusals(candidate: KernelCandidate, device: str) -> Attempts:
    """Wrong operands of the package's kernels, by the names of their parameters."""
    if candidate.name == "attention":
        yield from _attention_refusals(candidate, device)
        return
    if not candidate.formats:
        posed = RoutingCase(32, 4, 3, scheme="corrected sigmoid").pose(candidate, device)
        router, (logits, *_) = posed.layer, posed.arguments
        assert isinstance(router, RouterLayer)
        assert logits is not None
        assert router.correction is not None

        def routed(logits: torch.Tensor, correction: torch.Tensor | None = None) -> object:
            return candidate.build(replace(router, correction=correction)).run(logits)

        for label, run in refusals(lambda: routed, {"logits": logits}, "logits"):
            # One column less is one expert less, and nothing is wrong with that.
            if label != "logits with a column less":
                yield label, run
        both = {"logits": logits, "correction": router.correction}
        for label, run in refusals(lambda: routed, both, "logits"):
            yield f"with a correction, {label}", run
    for kind in candidate.formats:
        matrix = DenseCase(kind, (32, 64), 3, bias=True)
        case: AnyCase = W4a4Case(matrix) if candidate.name == "w4a4" else matrix
        names: tuple[str, ...] = ("x", "bias")
        if candidate.slot == "moe":
            case, names = MoeCase(kind, Sizes(4, 2, 64, 64), 3, "swiglu"), ("x", "logits")
        elif candidate.slot == "norm":
            case, names = NormCase(3, 64, residual=True), ("x", "residual")
        elif candidate.name == "normed-experts":
            case, names = NormedExpertsCase(kind, Sizes(4, 2, 64, 64), 3), ("x", "residual")
        elif candidate.name == "normed-mlp":
            case, names = NormedMlpCase(kind, (64, 32), 3), ("x", "residual")
        elif candidate.slot == "layer":
            case, names = NormedCase(kind, (32, 64), 3, bias=True), ("x", "residual", "bias")
        posed = case.pose(candidate, device)
        operands = {}
        if candidate.slot not in ("norm", "layer"):
            shape, dtype = posed.results[0]
            operands["out"] = torch.zeros(shape, dtype=dtype, device=device)
        for name, argument in zip(names, posed.arguments, strict=True):
            assert argument is not None
            operands[name] = argument
        made = partial(lambda layer: candidate.build(layer).run, posed.layer)
        most = by_check()[candidate.name].tokens[1]
        for label, run in refusals(made, operands, "x", most):
            yield f"{kind}, {label}", run


_CACHE_OPERAND: Mapping[str, Change] = {
    "of another layout": lambda cache: cache.transpose(1, 2).contiguous().transpose(1, 2),
    "from an odd address": lambda cache: torch.cat([cache] * 2, -1)[..., 1 : 1 + cache.shape[-1]],
    "with columns apart": lambda cache: cache.repeat_interleave(2, -1)[..., ::2],
    "with pages of 8 tokens": lambda cache: cache.unflatten(1, (-1, 8)).flatten(0, 1),
    "of a head less": lambda cache: cache[:, :, 1:],
}
_LAYERS: Mapping[str, dict[str, object]] = {
    "5 heads for 2": {"heads": 5},
    "34 heads for 2": {"heads": 34},
    "heads of 72 features": {"size": 72},
    "heads of 272 features": {"size": 272},
    "a negative window": {"window": -1},
    "a table in float64": {"cos_sin": torch.zeros(8, 64, dtype=torch.float64)},
    "a table that is too wide": {"cos_sin": torch.zeros(8, 66)},
    "a table of three dimensions": {"cos_sin": torch.zeros(8, 8, 8)},
    "a sink too few": {"sinks": torch.zeros(3)},
}


def _attention_refusals(candidate: KernelCandidate, device: str) -> Attempts:
    posed = AttentionCase(4, 2, 64, (5, 20)).pose(candidate, device)
    layer = posed.layer
    assert isinstance(layer, AttentionLayer)
    names = ("qkv", "positions", "keys", "values", "blocks", "lengths", "slots")
    operands = {n: a for n, a in zip(names, posed.arguments, strict=True) if a is not None}

    def made() -> Callable[..., object]:
        return candidate.build(layer).run

    for label, run in refusals(made, operands, "qkv"):
        # A page less of each request is nothing that can be told.
        if label != "blocks with a column less":
            yield label, run
    for name, (what, change) in product(("keys", "values"), _CACHE_OPERAND.items()):
        yield f"{name} {what}", partial(_refused, made, operands, name, change)
    for what, fields in _LAYERS.items():
        moved = {
            name: each.to(device) if isinstance(each, torch.Tensor) else each
            for name, each in fields.items()
        }
        yield what, partial(_not_built, candidate, replace(layer, **moved))  # type: ignore[arg-type]


def _not_built(candidate: KernelCandidate, layer: AttentionLayer) -> str:
    try:
        candidate.build(layer)
    except KernelError:
        return ""
    return "not refused"


def refusals(
    made: Callable[[], Callable[..., object]],
    operands: Mapping[str, torch.Tensor],
    rows: str,
    most: int = LARGEST_BATCH,
) -> Attempts:
    """Each wrong operand in words, with what tries it.

    Of several operands each is put where the others are not. A kernel of one operand runs wherever
    that lies, on the CPU of a machine with a GPU too: only where no kernel runs is it refused. The
    one named by `rows` tells the number of tokens, which is `most` at most.
    """
    for name in operands:
        changes = dict(_ANY_OPERAND) | (_row_operand(most) if name == rows else {})
        if len(operands) > 1:
            changes["on another device"] = _elsewhere
        else:
            changes["where no kernel runs"] = lambda operand: operand.to("meta")
        for what, change in changes.items():
            yield f"{name} {what}", partial(_refused, made, dict(operands), name, change)


def _elsewhere(operand: torch.Tensor) -> torch.Tensor:
    return torch.zeros_like(operand, device="meta" if operand.is_cpu else "cpu")


def _refused(
    made: Callable[[], Callable[..., object]],
    operands: dict[str, torch.Tensor],
    name: str,
    change: Change,
) -> str:
    compute = made()
    try:
        compute(**operands | {name: change(operands[name])})
    except KernelError:
        return ""
    except Exception as error:
        return f"{type(error).__name__} in place of KernelError: {error}"
    return "not refused"

"""How the parts of a decoder layer are tried: norm and matrix, attention, norm and experts."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from spark_prof.kernels.candidate import AttentionLayer
from spark_prof.kernels.check.attention_cases import AttentionCase, judge_attention
from spark_prof.kernels.check.inputs import copies
from spark_prof.kernels.check.oracles import Expected, scores_of
from spark_prof.kernels.check.verdict import Judgement, judge
from spark_prof.swaps.build import SwapPoint
from spark_prof.swaps.decoder_layer import LayerModules, read_part
from spark_prof.swaps.guard import NOT_TAKEN, TRIAL, GuardedReplacement, ReplacementError, deadline
from spark_prof.swaps.layer_parts import own_forward, part_body, product_of
from spark_prof.swaps.live_weights import read_router
from spark_prof.swaps.tensor_parallel import unreduced
from spark_prof.swaps.trial_work import LARGE, PLAIN, SAME_TOKEN, Rows, TrialWork, made_tokens

_CLEAR = 2.0**-4
"""How far apart, over the largest, the last expert that is taken and the next one have to be: many
roundings of bfloat16, each of which is off by 2^-9 at most."""

_TRIED = 8
"""Tokens that are made for each that is kept, as not every one's experts are clear."""


def works_of_part(point: SwapPoint) -> tuple[TrialWork, ...]:
    """How a part is tried, with and without a residual; attention is tried by `try_attention`."""
    modules = LayerModules.of(point.module)
    if point.kind == "attention" or modules is None:
        return ()
    first = point.kind == "normed matrix"
    weight = (modules.first_norm if first else modules.second_norm).weight
    width = int(weight.shape[0])
    tokens = partial(made_tokens, width, weight.dtype, weight.device)

    def both(count: int, kind: str) -> Rows:
        return (*tokens(count, kind), *tokens(count, kind, seed=1))

    def stock_result(x: torch.Tensor, residual: torch.Tensor | None, *_: Any) -> Any:
        part = part_body(point.module, point.kind, {})  # type: ignore[arg-type]
        parts = getattr(point.module, "spark_prof_parts", {})
        with unreduced():  # a replacement returns this rank's share
            return parts.get(point.kind, part.stock)(x, residual)

    if point.kind == "normed mlp":
        return (TrialWork((width, "mlp"), both, (), stock_result),)
    if not first:
        clear = partial(_clear, modules, both)
        return (TrialWork((width, "experts"), clear, (), stock_result, (LARGE, SAME_TOKEN)),)
    bias = getattr(modules.matrices[0], "bias", None)
    fixed = (bias.detach() if isinstance(bias, torch.Tensor) else None,)
    return (
        TrialWork((width, "first"), tokens, (None, *fixed), stock_result),
        TrialWork((width, "residual"), both, fixed, stock_result),
    )


def _clear(modules: LayerModules, make: Callable[[int, str], Rows], count: int, kind: str) -> Rows:
    """Tokens whose experts are no matter of rounding: else two right kernels choose others."""
    rows = make(_TRIED * count, PLAIN if kind == SAME_TOKEN else kind)
    normed = own_forward(modules.second_norm)(*(part.clone() for part in rows))[0]
    router = read_router("", modules.mlp.experts)
    scores = scores_of(product_of(modules.gate(normed)), router)
    top = router.top_k
    best = scores.topk(top + 1).values
    gap = best[:, top - 1] - best[:, top]
    clear_rows = (gap > _CLEAR * best.abs().amax(-1)).nonzero()[:, 0]
    index = clear_rows if clear_rows.numel() else gap.argmax()[None]
    at = torch.arange(1 if kind == SAME_TOKEN else count, device=index.device) % len(index)
    return tuple(part[index[at]].expand(count, -1).contiguous() for part in rows)


_SMALLEST = 1e-12
"""Of the norm of a row: a padded request's is 0, and so has its result to be."""

_CONTEXTS = ((1,), (2, 17), (130, 1, 300, 0), tuple(range(250, 266)))
"""Of requests that are tried together, the tokens of each; 0 pads a CUDA graph."""
_VERIFYING = (2, 19, 130, 0)
"""The same of requests with two new tokens each."""


def try_attention(guarded: GuardedReplacement, point: SwapPoint, seconds: float) -> None:
    """Turns attention off that is not what its definition says, on a KV cache that is made up.

    vLLM's own wants more of an engine than there is while a model is loaded. The error that is kept
    is that of the row furthest from the definition.
    """
    layer = read_part(point.name, point.module, "attention")
    assert isinstance(layer, AttentionLayer)
    device = layer.cos_sin.device
    errors: list[ReplacementError] = []
    wide = guarded.replacement is not None and guarded.replacement.width > 1
    for lengths in (*_CONTEXTS, *((_VERIFYING,) if wide else ())):
        case = AttentionCase(
            layer.heads, layer.kv_heads, layer.size, lengths, window=layer.window, page=16,
            fp8=layer.fp8_scales is not None, codes=1 / min(layer.fp8_scales or (1,)),
            width=2 if lengths == _VERIFYING else 1,
        )  # fmt: skip
        arguments = case.arguments(str(device))
        before = tuple(copies(arguments))
        with deadline(seconds, f"{guarded.label} has not ended"):
            out = guarded.run(TRIAL, *arguments)
            if device.type == "cuda":
                torch.cuda.synchronize()
        if out is NOT_TAKEN:
            return
        judged = partial(_judged, errors, case.label)
        problem = judge_attention(layer, before, (out, *arguments[2:4]), judged).detail
        if problem:
            guarded.fail(f"on trial with {len(lengths)} requests: {problem}", quiet=True)
            return
    guarded.error = max(errors, key=lambda error: error.relative_l2)


def _judged(
    errors: list[ReplacementError], label: str, result: torch.Tensor, expected: Expected
) -> Judgement:
    """`judge`, which keeps the error of a result, and not that of new keys and values."""
    if result.ndim == 2:
        off = (result.double() - expected.value).norm(dim=-1)
        relative = off / expected.value.norm(dim=-1).clamp(min=_SMALLEST)
        row = int(relative.argmax())
        errors.append(ReplacementError(float(relative[row]), row, label, beyond=False))
    return judge(result, expected)

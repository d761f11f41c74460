"""How the parts of a decoder layer are tried: norm and matrix, attention, norm and experts."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from spark_prof.swaps.build import SwapPoint
from spark_prof.swaps.decoder_layer import LayerModules, part_body, product_of
from spark_prof.swaps.guard import Guarded
from spark_prof.swaps.trial_work import ALIKE, LARGE, PLAIN, Rows, Work, made_tokens

_CLEAR = 2.0**-4
"""How far apart, over the largest, the last expert that is taken and the next one have to be: many
roundings of bfloat16, each of which is off by 2^-9 at most."""

_TRIED = 8
"""Tokens that are made for each that is kept, as not every one's experts are clear."""


def works_of_part(point: SwapPoint) -> tuple[Work, ...]:
    """How a part is tried, with and without a residual; attention is tried by `try_attention`."""
    modules = LayerModules.of(point.module)
    if point.kind == "attention" or modules is None:
        return ()
    experts = point.kind == "normed experts"
    weight = (modules.second_norm if experts else modules.first_norm).weight
    width = int(weight.shape[0])
    tokens = partial(made_tokens, width, weight.dtype, weight.device)

    def both(count: int, kind: str) -> Rows:
        return (*tokens(count, kind), *tokens(count, kind, seed=1))

    def own(x: torch.Tensor, residual: torch.Tensor | None, *_: Any) -> Any:
        part = part_body(point.module, point.kind, {})  # type: ignore[arg-type]
        return getattr(point.module, "spark_prof_parts", {}).get(point.kind, part.stock)(
            x, residual
        )

    if experts:
        clear = partial(_clear, modules, both)
        return (Work((width, "experts"), clear, (), own, (LARGE, ALIKE)),)
    bias = getattr(modules.attention.qkv_proj, "bias", None)
    fixed = (bias.detach() if isinstance(bias, torch.Tensor) else None,)
    return (
        Work((width, "first"), tokens, (None, *fixed), own),
        Work((width, "residual"), both, fixed, own),
    )


def _clear(modules: LayerModules, make: Callable[[int, str], Rows], count: int, kind: str) -> Rows:
    """Tokens whose experts are no matter of rounding: else two right kernels choose others."""
    rows = make(_TRIED * count, PLAIN if kind == ALIKE else kind)
    normed = modules.second_norm(*(each.clone() for each in rows))[0]
    logits = product_of(modules.gate(normed)).float()
    top = int(modules.mlp.experts.router.top_k)
    best = logits.topk(top + 1).values
    gap = best[:, top - 1] - best[:, top]
    found = (gap > _CLEAR * best.abs().amax(-1)).nonzero()[:, 0]
    index = found if found.numel() else gap.argmax()[None]
    at = torch.arange(1 if kind == ALIKE else count, device=index.device) % len(index)
    return tuple(each[index[at]].expand(count, -1).contiguous() for each in rows)


def try_attention(guarded: Guarded, point: SwapPoint, seconds: float) -> None:
    """Holds attention to the definition of it, on a KV cache that is made up."""
    raise NotImplementedError

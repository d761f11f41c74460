"""A router of your own, to begin with: the k experts of largest score, and their weights.

    spark-prof kernels check THIS_FILE.py:build --slot router
    spark-prof ab --b router=THIS_FILE.py:build -- MODEL

`build` is called once for each router of the model, in every process of the engine. What it returns
is called for each step instead of vLLM's kernel, and while CUDA graphs are captured: it must not
wait for the GPU, keep memory, use another stream or write to its arguments. The check tells.
"""

from __future__ import annotations

import torch

from spark_prof.swaps.layers import Layer, Replacement, RouterLayer, has_triton

try:
    import triton
    import triton.language as tl
except ImportError:  # then plain PyTorch computes
    triton = None


def build(layer: Layer) -> Replacement | None:
    """The kernel for one router, or None to leave it to vLLM."""
    if not isinstance(layer, RouterLayer):
        return None
    router = layer

    def run(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        # logits: [M, E], bfloat16 or float32. The result: weights float32 [M, k] and experts int32
        # [M, k], of equal scores the expert of the lower number first.
        return _by_triton(logits, router) if has_triton(logits) else _by_torch(logits, router)

    # tokens=0: any number of rows. bits="kept": there are no weights to change.
    return Replacement(run, tokens=0, bits="kept", line="my own router")


def _by_torch(logits: torch.Tensor, router: RouterLayer) -> tuple[torch.Tensor, torch.Tensor]:
    values = logits.float()
    if router.scoring == "sigmoid":
        scores = choice = values.sigmoid()
    else:
        scores, choice = values.softmax(-1), values
    if router.correction is not None:
        choice = choice + router.correction
    # Unlike topk, a stable sort puts the lower number first among equals.
    experts = choice.sort(dim=-1, descending=True, stable=True).indices[:, : router.top_k]
    weights = scores.gather(1, experts)
    if router.renormalize:
        weights = weights / weights.sum(-1, keepdim=True)
    return weights * router.scale, experts.to(torch.int32)


def _by_triton(logits: torch.Tensor, router: RouterLayer) -> tuple[torch.Tensor, torch.Tensor]:
    tokens, experts = logits.shape
    weights = torch.empty((tokens, router.top_k), dtype=torch.float32, device=logits.device)
    chosen = torch.empty((tokens, router.top_k), dtype=torch.int32, device=logits.device)
    _route[(tokens,)](
        logits,
        router.correction,
        weights,
        chosen,
        experts,
        router.scale,
        TOP_K=router.top_k,
        SLOTS=triton.next_power_of_2(router.top_k),
        BLOCK=triton.next_power_of_2(experts),
        SIGMOID=router.scoring == "sigmoid",
        CORRECTED=router.correction is not None,
        RENORMALIZE=router.renormalize,
        num_warps=1,
    )
    return weights, chosen


if triton is not None:

    @triton.jit  # type: ignore[untyped-decorator]
    def _route(  # type: ignore[no-untyped-def]
        logits,
        correction,
        weights,
        chosen,
        experts,
        scale,
        TOP_K: tl.constexpr,  # noqa: N803
        SLOTS: tl.constexpr,  # noqa: N803
        BLOCK: tl.constexpr,  # noqa: N803
        SIGMOID: tl.constexpr,  # noqa: N803
        CORRECTED: tl.constexpr,  # noqa: N803
        RENORMALIZE: tl.constexpr,  # noqa: N803
    ):
        # One program a token: the best expert is taken out k times.
        token = tl.program_id(0)
        expert = tl.arange(0, BLOCK)
        left = expert < experts
        value = tl.load(logits + token * experts + expert, mask=left, other=-float("inf"))
        value = value.to(tl.float32)
        if SIGMOID:
            score = 1.0 / (1.0 + tl.exp(-value))
            choice = score
        else:
            score = tl.exp(value - tl.max(value))
            choice = value
        if CORRECTED:
            choice += tl.load(correction + expert, mask=left, other=0.0)
        # A NaN equals nothing, itself included: it must not be the best.
        choice = tl.where(choice != choice, -float("inf"), choice)
        slot = tl.arange(0, SLOTS)
        shares = tl.zeros((SLOTS,), tl.float32)
        for place in range(TOP_K):
            best = tl.max(tl.where(left, choice, -float("inf")))
            number = tl.min(tl.where(left & (choice == best), expert, BLOCK))
            left = left & (expert != number)
            here = tl.sum(tl.where(expert == number, score, 0.0))
            shares = tl.where(slot == place, here, shares)
            tl.store(chosen + token * TOP_K + place, number)
        if RENORMALIZE:
            shares = shares / tl.sum(shares)
        elif not SIGMOID:
            shares = shares / tl.sum(tl.where(expert < experts, score, 0.0))
        tl.store(weights + token * TOP_K + slot, shares * scale, mask=slot < TOP_K)

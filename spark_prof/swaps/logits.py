"""How far two sides' logits for the same token lie apart, and how a token is forced."""

from __future__ import annotations

from dataclasses import dataclass

import torch

_FORCED = 1e4
"""The logit of a forced token, beside 0 for all others: any sampling takes it."""


@dataclass(frozen=True)
class Difference:
    """One row of logits on both sides. A number that is not finite says that a side's are not.

    Attributes:
        token_a: the largest logit's token on side a.
        token_b: the same on side b.
        margin_a: how far side a's largest logit lies above its second.
        kl_nats: Kullback-Leibler divergence of b's distribution from a's, in nats.
        worst: the largest difference of two logits.
        scale: the standard deviation of side a's logits, to see `worst` against.
    """

    token_a: int
    token_b: int
    margin_a: float
    kl_nats: float
    worst: float
    scale: float


def compare_logits(a: torch.Tensor, b: torch.Tensor) -> list[Difference]:
    """Compares the rows of two [R, V] on their device, in float64; waits for it.

    Tokens that both sides exclude with a logit of minus infinity count as equal.
    """
    a, b = a.double(), b.double()
    log_a, log_b = a.log_softmax(dim=1), b.log_softmax(dim=1)
    share = log_a.exp()
    # 0 * (-inf - -inf) is no number, but a token without a share contributes nothing.
    summands = torch.where(share == 0, 0.0, share * (log_a - log_b))
    difference = torch.where(a == b, 0.0, (a - b).abs())
    top = a.topk(2, dim=1).values
    included = ~a.isneginf()
    count = included.sum(dim=1, keepdim=True)
    mean = a.where(included, 0.0).sum(dim=1, keepdim=True) / count
    spread = ((a - mean).square().where(included, 0.0).sum(dim=1) / count[:, 0]).sqrt()
    numbers = torch.stack(
        [
            top[:, 0] - top[:, 1],
            summands.sum(dim=1).clamp(min=0.0),
            difference.amax(dim=1),
            spread,
        ],
        dim=1,
    ).tolist()
    tokens = zip(a.argmax(dim=1).tolist(), b.argmax(dim=1).tolist(), strict=True)
    return [
        Difference(token_a, token_b, *row)
        for (token_a, token_b), row in zip(tokens, numbers, strict=True)
    ]


def force_tokens(logits: torch.Tensor, rows: list[int], tokens: torch.Tensor) -> torch.Tensor:
    """A copy of [R, V] in which each of the rows can only give its token.

    Args:
        logits: what the model computed; left as it is.
        tokens: int64, one for each of the rows.
    """
    forced = logits.clone()
    only = torch.zeros(len(rows), logits.shape[1], dtype=logits.dtype, device=logits.device)
    only.scatter_(1, tokens.to(logits.device)[:, None], _FORCED)
    forced[rows] = only
    return forced

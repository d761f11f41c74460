"""Whether the model still says the same: the verdict that comes before any timing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["Bounds", "Figures", "LayerError", "Position", "Verdict"]

Bits = Literal["kept", "changed"]
"""Whether all swaps compute with the weights' own bits, or some with others."""


@dataclass(frozen=True)
class Position:
    """One sampled position of both sides, a row of a worker's `spark_prof_compared`.

    Attributes:
        step: the engine's step, from 0.
        row: the request in it.
        token_a: the largest logit of side a.
        token_b: the largest logit of side b.
        agree: both are the same.
        margin_a: how far side a's largest logit is above its second.
        kl_nats: of side b's distribution from side a's, KL(a || b).
        worst: largest difference of two logits of a token.
        scale: standard deviation of side a's logits.
    """

    step: int
    row: int
    token_a: int
    token_b: int
    agree: bool
    margin_a: float
    kl_nats: float
    worst: float
    scale: float


@dataclass(frozen=True)
class Figures:
    """How two sides' logits compare over all positions.

    Attributes:
        positions: compared.
        not_finite: of them with a NaN or an infinity; no other figure counts them.
        agreement: share of positions whose largest logit is the same token's.
        near_ties: positions whose margin is so small that rounding alone may decide it.
        clear_agreement: share among the others; None where all are near ties.
        kl_mean: nats.
        kl_worst: nats, of one position.
        worst: largest difference of a logit, in standard deviations of the logits.
    """

    positions: int
    not_finite: int
    agreement: float | None
    near_ties: int
    clear_agreement: float | None
    kl_mean: float | None
    kl_worst: float | None
    worst: float | None


@dataclass(frozen=True)
class Bounds:
    """What a run must keep to; a side that changes bits has wide ones.

    Attributes:
        clear_agreement: at least.
        kl_mean: at most, nats.
        kl_worst: at most, nats, of one position.
        worst: at most, in standard deviations of the logits.
        why: where they come from, in words.
    """

    clear_agreement: float
    kl_mean: float
    kl_worst: float
    worst: float
    why: str


@dataclass(frozen=True)
class LayerError:
    """One swapped layer, alone, on the input that vLLM's own had.

    Attributes:
        layer: the module's path.
        slot: which it is.
        bits: of this swap.
        relative: L2 norm of the difference over that of vLLM's own result; None where either is
            not finite.
        bound: at most; None where the loss is only stated.
        passed: within the bound and finite.
    """

    layer: str
    slot: str
    bits: Bits
    relative: float | None
    bound: float | None
    passed: bool


@dataclass(frozen=True)
class Verdict:
    """The gate's.

    Attributes:
        passed: timings count.
        bits: of the swaps together.
        reasons: why it failed, one line each; empty where it passed.
        notes: what is stated beside it, such as the loss of a side that quantizes.
        figures: of a against b; None where nothing was compared.
        floor: of a against itself; None where that was not compared.
        bounds: that were applied; None where nothing was compared.
        layers: of each swapped layer that was compared alone.
    """

    passed: bool
    bits: Bits
    reasons: tuple[str, ...]
    notes: tuple[str, ...]
    figures: Figures | None
    floor: Figures | None
    bounds: Bounds | None
    layers: tuple[LayerError, ...]

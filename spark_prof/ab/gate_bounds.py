"""How far two sides' logits may lie apart where both compute the same: derived, not tuned.

Both sides multiply the same numbers and differ in the order of their float32 sums, so that some
results round to another bfloat16. Such a difference changes later roundings, and after some layers
the roundings of the sides have nothing to do with each other. So their errors add up as independent
ones do:

- A rounding to bfloat16 is off by up to half a unit in the last place. Over values whose logarithms
  are spread evenly that is 2^-7 / sqrt(12 * 2.16) = 0.0015 of their size (root mean square); for
  the difference of two sides, sqrt(2) times that.
- A layer adds the results of two blocks to the residual stream, N = 2 x layers in all. They are of
  one size, so after m of them the stream's square is m. Each addition is rounded; inside a block
  there are 6 roundings one after another (norm, product, activation or probabilities, product ...).
- What is wrong with the stream goes through each block, too. SwiGLU is a product, where the squares
  of the relative errors of both factors add up; attention is an average. So 1.5 times the relative
  square comes out of a block in the mean.

With E for the square of the difference, from E = 0 and m = 1 to N, that is

    E(m + 1) = E(m) (1 + 1.5 / m) + 2 * 0.0015^2 * (m + 1 + 6)

and sqrt(E / N) is the deviation of the hidden state, and of the logits, in their own standard
deviations: 0.025 for 24 layers, 0.034 for 48. Logits that are off by a deviation d of a scale s
change the distribution by KL <= (d s)^2 / 2, half the variance of the change, to second order.
Twice that deviation is allowed.

A router chooses experts by the largest scores. Where two are nearly equal a rounding exchanges one
for the other, the layer's result changes by a large part, and by that later choices. How often is a
matter of the model: in simulations with random weights (tests/ab) the deviation is 0.1 to 0.25. So
0.5 is allowed where nothing is known. Better is to measure it: side a against itself, disturbed at
its beginning by no more than a rounding. Twice the mean KL that this brings is allowed, and so are
three standard errors of it: a few positions meet such an exchange or not, by chance. For the same
reason a single position of a model with experts may be as far off as one exchange takes it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

_ROUNDING = 2.0**-7 / math.sqrt(12 * 1.5 / math.log(2))
_IN_A_BLOCK = 6
_THROUGH_A_BLOCK = 1.5
_MARGIN = 2.0
_ROUTED = 0.5
_WORST_OF_MEAN = 16.0
"""KL of the worst position, in means: 6 at most in simulations of models without experts."""
_WORST_ELEMENT = 8.0
"""In allowed deviations, so 16 of the derived ones. 2e8 logits of a normal distribution lie within
6.2; positions differ by a factor of 2."""
_NEAR_TIE = 4.0
"""In allowed deviations; the difference of two logits has sqrt(2) of the derived ones."""
_CLEAR = 0.99
_STANDARD_ERRORS = 3.0
_UNRELATED = 0.5
"""In squares of the scale: KL of normally distributed logits without anything in common is 1."""


@dataclass(frozen=True)
class Depth:
    """What a model does to rounding errors.

    Attributes:
        layers: decoder layers.
        routed: some of them choose experts.
    """

    layers: int
    routed: bool


@dataclass(frozen=True)
class Floor:
    """What side a against itself shows, disturbed.

    Attributes:
        kl_mean: nats.
        kl_error: standard error of that mean.
        kl_worst: of one position.
        worst: largest difference of a logit, in standard deviations of the logits.
    """

    kl_mean: float
    kl_error: float
    kl_worst: float
    worst: float


@dataclass(frozen=True)
class Bounds:
    """What a run must keep to; a side that changes bits has wide ones.

    Attributes:
        clear_agreement: at least.
        kl_mean: at most, nats.
        kl_worst: at most, nats, of one position; None for any.
        worst: at most, in standard deviations of the logits; None for any.
        why: where they come from, in words.
        near_tie: margins up to it may be decided by rounding, in standard deviations of the logits.
    """

    clear_agreement: float
    kl_mean: float
    kl_worst: float | None
    worst: float | None
    why: str
    near_tie: float = 0.0


def rounding_deviation(layers: int) -> float:
    """How far bfloat16 rounding alone drives two sides apart, in standard deviations of the logits.

    Args:
        layers: of a model without experts, at least 1.
    """
    square = 0.0
    for blocks in range(1, 2 * layers + 1):
        rounded = 2 * _ROUNDING**2 * (blocks + 1 + _IN_A_BLOCK)
        square = square * (1 + _THROUGH_A_BLOCK / blocks) + rounded
    return math.sqrt(square / (2 * layers))


def kept_bounds(depth: Depth, scale: float, floor: Floor | None) -> Bounds:
    """The bounds where both sides compute with the same bits.

    Args:
        depth: of the model.
        scale: root mean square of the logits' standard deviations.
        floor: side a against itself; None where that was not measured.
    """
    allowed = _MARGIN * rounding_deviation(depth.layers)
    why = f"bfloat16 rounding through {depth.layers} layers"
    if floor is not None and floor.kl_mean > _kl(allowed, scale) / 16:
        largest = floor.kl_mean + _STANDARD_ERRORS * floor.kl_error
        allowed = max(allowed, math.sqrt(2 * _MARGIN * largest) / scale)
        why += f", or {_MARGIN:g} times what side a against itself shows"
    elif depth.routed:
        allowed = _ROUTED
        why += " and routers that exchange experts at near ties"
    kl_mean = _kl(allowed, scale)
    kl_worst, worst = _WORST_OF_MEAN * kl_mean, _WORST_ELEMENT * allowed
    if floor is not None:
        kl_worst = max(kl_worst, _MARGIN * floor.kl_worst)
        worst = max(worst, _MARGIN * floor.worst)
    if depth.routed:
        kl_worst = max(kl_worst, _WORST_OF_MEAN * _kl(_ROUTED, scale))
        worst = max(worst, _WORST_ELEMENT * _ROUTED)
    return Bounds(_CLEAR, kl_mean, kl_worst, worst, why, _NEAR_TIE * allowed)


def changed_bounds(depth: Depth, scale: float) -> Bounds:
    """The bounds where a side computes with other bits: only what is no model any more fails.

    Args:
        depth: of the model.
        scale: root mean square of the logits' standard deviations.
    """
    return Bounds(
        clear_agreement=0.0,
        kl_mean=_UNRELATED * scale**2,
        kl_worst=None,
        worst=None,
        why="half the KL of logits that have nothing in common; the loss is stated, not judged",
        near_tie=_NEAR_TIE * _MARGIN * rounding_deviation(depth.layers),
    )


def _kl(deviation: float, scale: float) -> float:
    return (deviation * scale) ** 2 / 2

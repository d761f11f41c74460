"""Whether the model still says the same: the verdict that comes before any timing.

How far two sides' logits may lie apart where both compute the same: derived, not tuned.

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
three standard errors of it: a few positions meet such an exchange or not, by chance. Where that is
less than what is derived for roundings alone, exchanges are rare in that model. For the same
reason a single position of a model with experts may be as far off as one exchange takes it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import stdev
from typing import Literal

from spark_prof.swaps.swap_settings import Rounded, layer_bound, rounding_error

_ROUNDING = rounding_error(7)
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
ENOUGH_POSITIONS = 256
"""Among so many, what rarely happens, as another choice of experts, is met by the floor too."""
_STANDARD_ERRORS = 3.0
_UNRELATED = 0.5
"""In squares of the scale: KL of normally distributed logits without anything in common is 1."""


@dataclass(frozen=True)
class Depth:
    """What decides how far rounding errors grow in a model."""

    layers: int  # decoder layers
    routed: bool  # some of them choose experts


@dataclass(frozen=True)
class GateBounds:
    """What a run must keep to; a side that changes bits has wide ones."""

    clear_agreement: float  # at least
    kl_mean: float  # at most, nats
    kl_worst: float | None  # at most, nats, of one position; None for any
    worst: float | None  # at most, in standard deviations of the logits; None for any
    why: str  # where they come from, in words
    near_tie: float = 0.0
    """Margins up to it may be decided by rounding, in standard deviations of the logits."""


def rounding_deviation(layers: int) -> float:
    """How far rounding alone drives two sides apart, in standard deviations of the logits."""
    square = 0.0
    for blocks in range(1, 2 * layers + 1):
        rounded = 2 * _ROUNDING**2 * (blocks + 1 + _IN_A_BLOCK)
        square = square * (1 + _THROUGH_A_BLOCK / blocks) + rounded
    return math.sqrt(square / (2 * layers))


def kept_bounds(depth: Depth, scale: float, floor: Sequence[Position] = ()) -> GateBounds:
    """The bounds where both sides compute with the same bits.

    The scale is the root mean square of the logits' standard deviations; the floor, of which only
    finite positions are given, side a against itself, disturbed.
    """
    mean, largest, furthest = _extremes(floor) or (0.0, 0.0, 0.0)
    allowed = _MARGIN * rounding_deviation(depth.layers)
    why = f"bfloat16 rounding through {depth.layers} layers"
    if mean > _kl(allowed, scale) / 16:
        highest = mean + _STANDARD_ERRORS * _error_of_mean([position.kl_nats for position in floor])
        allowed = max(allowed, math.sqrt(2 * _MARGIN * highest) / scale)
        why += f", or {_MARGIN:g} times what side a against itself shows"
    elif depth.routed and (not mean or len(floor) < ENOUGH_POSITIONS):
        allowed = _ROUTED
        why += " and routers that exchange experts at near ties"
    kl_mean = _kl(allowed, scale)
    kl_worst, worst = _WORST_OF_MEAN * kl_mean, _WORST_ELEMENT * allowed
    kl_worst, worst = max(kl_worst, _MARGIN * largest), max(worst, _MARGIN * furthest)
    if depth.routed:
        kl_worst = max(kl_worst, _WORST_OF_MEAN * _kl(_ROUTED, scale))
        worst = max(worst, _WORST_ELEMENT * _ROUTED)
    return GateBounds(_CLEAR, kl_mean, kl_worst, worst, why, _NEAR_TIE * allowed)


def changed_bounds(depth: Depth, scale: float) -> GateBounds:
    """The bounds where a side computes with other bits: only what is no model any more fails."""
    return GateBounds(
        clear_agreement=0.0,
        kl_mean=_UNRELATED * scale**2,
        kl_worst=None,
        worst=None,
        why="half the KL of logits that have nothing in common; the loss is stated, not judged",
        near_tie=_NEAR_TIE * _MARGIN * rounding_deviation(depth.layers),
    )


def _kl(deviation: float, scale: float) -> float:
    return (deviation * scale) ** 2 / 2


Bits = Literal["kept", "changed"]
"""Whether all swaps compute with the weights' own bits, or some with others."""

_FEWEST_POSITIONS = 8
_STRETCHES = 16
_MOST_LAYER_LINES = 8
_MOST_NATS = 700.0
_UNKNOWN_DEPTH = Depth(48, routed=True)


@dataclass(frozen=True)
class Position:
    """One sampled position of both sides, a row of a worker's `spark_prof_compared`."""

    step: int  # the engine's step, from 0
    row: int  # the request in it
    token_a: int  # the largest logit of side a
    token_b: int  # the largest logit of side b
    margin_a: float  # how far side a's largest logit is above its second
    kl_nats: float  # of side b's distribution from side a's, KL(a || b)
    worst: float  # largest difference of two logits of a token
    scale: float  # standard deviation of side a's logits
    loss_a: float = 0.0  # of the token that comes next, nats
    loss_b: float = 0.0
    behind: int = 0  # accepted drafts of the same step before it, on side b


@dataclass(frozen=True)
class Text:
    """What a text's tokens cost on both sides."""

    loss_a: float  # mean, nats a token
    loss_b: float
    error: float  # standard error of the difference of both

    @property
    def extra_nats(self) -> float:
        """How much more they cost on side b, nats a token."""
        return self.loss_b - self.loss_a

    @property
    def perplexity_a(self) -> float:
        """Perplexity of the text on side a."""
        return math.exp(min(self.loss_a, _MOST_NATS))

    @property
    def perplexity_b(self) -> float:
        """Perplexity of the text on side b."""
        return math.exp(min(self.loss_b, _MOST_NATS))


@dataclass(frozen=True)
class LogitFigures:
    """How two sides' logits compare over all positions."""

    positions: int  # compared
    not_finite: int  # of them with a NaN or an infinity; no other figure counts them
    agreement: float | None  # share of positions whose largest logit is the same token's
    near_ties: int  # positions whose margin is so small that rounding alone may decide it
    clear_agreement: float | None  # share among the others; None where all are near ties
    kl_mean: float | None  # nats
    kl_worst: float | None  # nats, of one position
    worst: float | None  # largest difference of a logit, in standard deviations of the logits
    text: Text | None = None  # None where no text was given


@dataclass(frozen=True)
class LayerError:
    """One swapped layer, alone, on the input that vLLM's own had."""

    layer: str  # the module's path
    slot: str  # which it is
    bits: Bits  # of this swap
    relative: float | None
    """L2 norm of the difference over that of vLLM's own result; None where either is not finite."""
    bound: float | None  # at most; None where the loss is only stated
    passed: bool  # within the bound and finite
    where: str = ""  # the row and the call that `relative` is of: `row 1 of 2 rows (large tokens)`
    rounded: Rounded = ""  # what vLLM rounds activations to there, where the swap does not


@dataclass(frozen=True)
class GateVerdict:
    """The gate's."""

    passed: bool  # timings count
    bits: Bits  # of the swaps together
    reasons: tuple[str, ...]  # why it failed, one line each; empty where it passed
    notes: tuple[str, ...]  # what is stated beside it, such as the loss of a side that quantizes
    figures: LogitFigures | None  # of a against b; None where nothing was compared
    floor: LogitFigures | None
    """Of a against itself, disturbed by a rounding; None where that was not compared."""
    bounds: GateBounds | None  # that were applied; None where nothing was compared
    layers: tuple[LayerError, ...]  # of each swapped layer that was compared alone


def judge(
    positions: Sequence[Position],
    bits: Bits,
    # Of a against itself, disturbed at its beginning by a rounding; where it is the same bit
    # for bit, or nothing was compared, it says nothing.
    floor: Sequence[Position] = (),
    layers: Sequence[LayerError] = (),  # each swapped layer alone, as `judge_layer` makes them
    # Of the model; None where it is not known, which is judged as a deep one with experts.
    depth: Depth | None = None,
    *,
    text: bool = False,  # the tokens that come next are a text's, not side a's own
) -> GateVerdict:
    """Whether side b says the same as side a."""
    depth = depth or _UNKNOWN_DEPTH
    sound = _finite(positions)
    bounds = figures = noise = None
    if sound:
        scale = math.sqrt(math.fsum(position.scale**2 for position in sound) / len(sound))
        if bits == "kept":
            bounds = kept_bounds(depth, scale, _finite(floor))
        else:
            bounds = changed_bounds(depth, scale)
        figures = _figures(positions, bounds.near_tie, text=text)
        noise = _figures(floor, bounds.near_tie, text=text) if floor else None
    reasons = (*_failures(len(positions), len(sound), figures, bounds), *_layer_failures(layers))
    notes = tuple(_notes(bits, figures, layers))
    return GateVerdict(not reasons, bits, reasons, notes, figures, noise, bounds, tuple(layers))


def judge_layer(
    layer: str,
    slot: str,
    bits: Bits,
    relative: float | None,
    where: str = "",
    *,
    beyond: bool = False,  # an element of it is too far off
    rounded: Rounded = "",  # what vLLM's own layer rounds its activations to
) -> LayerError:
    """Whether one swapped layer is near enough to vLLM's own; see `LayerError`."""
    bound = layer_bound(bits, slot, layer, rounded)
    if relative is not None and not math.isfinite(relative):
        relative = None
    passed = relative is not None and relative <= bound and not beyond
    return LayerError(layer, slot, bits, relative, bound, passed, where, rounded)


def _finite(positions: Sequence[Position]) -> list[Position]:
    """The positions at which both sides' logits are finite and those of side a differ."""
    return [
        position
        for position in positions
        if all(
            map(
                math.isfinite, (position.margin_a, position.kl_nats, position.worst, position.scale)
            )
        )
        and position.scale > 0
    ]


def _error_of_mean(values: Sequence[float]) -> float:
    """The standard error of the mean of what follows each other."""
    # Positions of one request follow each other: what one meets stays in its context.
    size = max(1, len(values) // _STRETCHES)
    stretches = [values[at : at + size] for at in range(0, len(values) - size + 1, size)]
    means = [math.fsum(stretch) / size for stretch in stretches]
    return stdev(means) / math.sqrt(len(means)) if len(means) > 1 else abs(means[0])


def _text(positions: Sequence[Position]) -> Text:
    count = len(positions)
    loss_a, loss_b = (
        math.fsum(losses) / count
        for losses in zip(
            *((position.loss_a, position.loss_b) for position in positions), strict=True
        )
    )
    # Steps of all requests come one after another; those of one request belong together.
    ordered = sorted(positions, key=lambda position: (position.row, position.step))
    return Text(
        loss_a, loss_b, _error_of_mean([position.loss_b - position.loss_a for position in ordered])
    )


def _extremes(positions: Sequence[Position]) -> tuple[float, float, float] | None:
    """Mean and largest KL divergence, and the worst logit in standard deviations."""
    if not positions:
        return None
    divergences = [position.kl_nats for position in positions]
    worst = max(position.worst / position.scale for position in positions)
    return math.fsum(divergences) / len(positions), max(divergences), worst


def _figures(positions: Sequence[Position], near_tie: float, *, text: bool) -> LogitFigures:
    sound = _finite(positions)
    clear = [position for position in sound if position.margin_a > near_tie * position.scale]
    mean, largest, worst = _extremes(sound) or (None, None, None)
    return LogitFigures(
        positions=len(positions),
        not_finite=len(positions) - len(sound),
        agreement=_agreement(sound),
        near_ties=len(sound) - len(clear),
        clear_agreement=_agreement(clear),
        kl_mean=mean,
        kl_worst=largest,
        worst=worst,
        text=_text(sound) if text and sound else None,
    )


def _agreement(positions: Sequence[Position]) -> float | None:
    if not positions:
        return None
    return sum(position.token_a == position.token_b for position in positions) / len(positions)


def _failures(
    positions: int, sound: int, figures: LogitFigures | None, bounds: GateBounds | None
) -> tuple[str, ...]:
    if positions < _FEWEST_POSITIONS:
        return (f"{positions} positions were compared; {_FEWEST_POSITIONS} are needed",)
    lines = []
    if sound < positions:
        lines.append(
            f"{positions - sound} of {positions} positions have logits that are NaN, infinite or "
            "all the same"
        )
    if figures is None or bounds is None:
        return tuple(lines)
    if figures.clear_agreement is not None and figures.clear_agreement < bounds.clear_agreement:
        lines.append(
            f"the most likely token is the same at {figures.clear_agreement:.1%} of the positions "
            f"that are no near tie; {bounds.clear_agreement:.0%} are needed"
        )
    for words, unit, value, most in (
        ("the mean KL divergence", " nats", figures.kl_mean, bounds.kl_mean),
        ("the largest KL divergence", " nats", figures.kl_worst, bounds.kl_worst),
        ("the worst logit's error", " standard deviations", figures.worst, bounds.worst),
    ):
        if value is not None and most is not None and value > most:
            lines.append(f"{words} is {value:.3g}{unit}; at most {most:.3g} is allowed")
    # The variance of a change of logits is twice the divergence, which is what a token costs more
    # where a model is as sure as it is right.
    allowed = bounds.kl_mean + _STANDARD_ERRORS * math.sqrt(2 * bounds.kl_mean / max(1, sound))
    if (text := figures.text) and text.extra_nats > allowed:
        lines.append(
            f"a token of the text costs {text.extra_nats:.3g} nats more on side b (perplexity "
            f"{text.perplexity_a:.4g} to {text.perplexity_b:.4g}); at most {allowed:.3g} is allowed"
        )
    return tuple(lines)


def _layer_failures(layers: Sequence[LayerError]) -> tuple[str, ...]:
    failed = [layer for layer in layers if not layer.passed]
    lines = [
        f"{layer.layer} ({layer.slot}) alone is not finite{_where(layer)}"
        if layer.relative is None
        else f"{layer.layer} ({layer.slot}) alone is {layer.relative:.2%} from vLLM's result"
        f"{_where(layer)}; at most {layer.bound or 0:.2%} is allowed"
        + (", and less for one element" if layer.relative <= (layer.bound or 0) else "")
        for layer in failed[:_MOST_LAYER_LINES]
    ]
    if len(failed) > _MOST_LAYER_LINES:
        lines.append(f"and {len(failed) - _MOST_LAYER_LINES} more layers")
    return tuple(lines)


def _where(error: LayerError) -> str:
    return f" in {error.where}" if error.where else ""


def _notes(bits: Bits, figures: LogitFigures | None, layers: Sequence[LayerError]) -> list[str]:
    notes = []
    for to, number in Counter(layer.rounded for layer in layers if layer.rounded).items():
        where = f"{to.upper()} in {number} layer{'s' * (number > 1)}"
        notes.append(f"vLLM rounds activations to {where}; the kernels here do not")
    if figures is not None and figures.agreement is not None:
        if figures.worst == 0:
            notes.append("all logits are the same bit for bit")
        elif bits == "changed":
            notes.append(
                f"computing with other bits costs: {1 - figures.agreement:.1%} of the most likely "
                f"tokens are others, KL {figures.kl_mean:.3g} nats in the mean"
            )
        if figures.clear_agreement is None:
            notes.append("all positions are near ties, so that agreement says nothing")
        if text := figures.text:
            notes.append(
                f"perplexity of the text: {text.perplexity_a:.4g} on side a, "
                f"{text.perplexity_b:.4g} on side b ({text.extra_nats:+.2g} nats a token, "
                f"standard error {text.error:.2g})"
            )
    if bits == "kept" and not layers:
        notes.append("no layer was compared alone, so that small errors of a few are not seen")
    return notes

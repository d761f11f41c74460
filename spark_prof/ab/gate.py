"""Whether the model still says the same: the verdict that comes before any timing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import stdev
from typing import Literal

from spark_prof.ab.gate_bounds import Bounds, Depth, Floor, changed_bounds, kept_bounds
from spark_prof.swaps.spec import LAYER_BOUNDS

Bits = Literal["kept", "changed"]
"""Whether all swaps compute with the weights' own bits, or some with others."""

_FEWEST_POSITIONS = 8
_STRETCHES = 16
_MOST_LAYER_LINES = 8
_UNKNOWN_DEPTH = Depth(48, routed=True)


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
        where: the row and the call that `relative` is of: `row 1 of 2 rows (large tokens)`.
    """

    layer: str
    slot: str
    bits: Bits
    relative: float | None
    bound: float | None
    passed: bool
    where: str = ""


@dataclass(frozen=True)
class Verdict:
    """The gate's.

    Attributes:
        passed: timings count.
        bits: of the swaps together.
        reasons: why it failed, one line each; empty where it passed.
        notes: what is stated beside it, such as the loss of a side that quantizes.
        figures: of a against b; None where nothing was compared.
        floor: of a against itself, disturbed by a rounding; None where that was not compared.
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


def judge(
    positions: Sequence[Position],
    bits: Bits,
    floor: Sequence[Position] = (),
    layers: Sequence[LayerError] = (),
    depth: Depth | None = None,
) -> Verdict:
    """Whether side b says the same as side a.

    Args:
        positions: of a against b.
        bits: kept if all swaps keep them.
        floor: of a against itself, disturbed at its beginning by a rounding; where it is the same
            bit for bit, or nothing was compared, it says nothing.
        layers: each swapped layer alone, as `judge_layer` makes them.
        depth: of the model; None where it is not known, which is judged as a deep one with experts.
    """
    depth = depth or _UNKNOWN_DEPTH
    sound = [position for position in positions if _is_finite(position)]
    bounds = figures = noise = None
    if sound:
        scale = math.sqrt(math.fsum(each.scale**2 for each in sound) / len(sound))
        noise_of_a = _floor([each for each in floor if _is_finite(each)])
        kept = bits == "kept"
        bounds = kept_bounds(depth, scale, noise_of_a) if kept else changed_bounds(depth, scale)
        figures = _figures(positions, bounds)
        noise = _figures(floor, bounds) if floor else None
    reasons = (*_failures(len(positions), len(sound), figures, bounds), *_layer_failures(layers))
    notes = tuple(_notes(bits, figures, layers))
    return Verdict(not reasons, bits, reasons, notes, figures, noise, bounds, tuple(layers))


def judge_layer(
    layer: str,
    slot: str,
    bits: Bits,
    relative: float | None,
    where: str = "",
    *,
    beyond: bool = False,
) -> LayerError:
    """Whether one swapped layer is near enough to vLLM's own.

    Args:
        layer: the module's path.
        slot: which it is.
        bits: of its swap.
        relative: L2 norm of the difference of a row over that of vLLM's own result.
        where: which row of which call that is of.
        beyond: an element of it is too far off.
    """
    bound = LAYER_BOUNDS[bits]
    if relative is None or not math.isfinite(relative):
        return LayerError(layer, slot, bits, None, bound, passed=False, where=where)
    passed = relative <= bound and not beyond
    return LayerError(layer, slot, bits, relative, bound, passed=passed, where=where)


def _is_finite(position: Position) -> bool:
    """Whether both sides' logits were numbers; side a's must differ from each other."""
    numbers = (position.margin_a, position.kl_nats, position.worst, position.scale)
    return all(map(math.isfinite, numbers)) and position.scale > 0


def _floor(positions: Sequence[Position]) -> Floor | None:
    extremes = _extremes(positions)
    if extremes is None:
        return None
    mean, largest, worst = extremes
    # Positions of one request follow each other: what one meets stays in its context.
    size = max(1, len(positions) // _STRETCHES)
    stretches = [positions[at : at + size] for at in range(0, len(positions) - size + 1, size)]
    means = [math.fsum(each.kl_nats for each in stretch) / size for stretch in stretches]
    error = stdev(means) / math.sqrt(len(means)) if len(means) > 1 else mean
    return Floor(mean, error, largest, worst)


def _extremes(floor: Sequence[Position]) -> tuple[float, float, float] | None:
    if not floor:
        return None
    divergences = [each.kl_nats for each in floor]
    worst = max(each.worst / each.scale for each in floor)
    return math.fsum(divergences) / len(floor), max(divergences), worst


def _figures(positions: Sequence[Position], bounds: Bounds) -> Figures:
    sound = [position for position in positions if _is_finite(position)]
    extremes = _extremes(sound)
    clear = [each for each in sound if each.margin_a > bounds.near_tie * each.scale]
    mean, largest, worst = extremes or (None, None, None)
    return Figures(
        positions=len(positions),
        not_finite=len(positions) - len(sound),
        agreement=_agreement(sound),
        near_ties=len(sound) - len(clear),
        clear_agreement=_agreement(clear),
        kl_mean=mean,
        kl_worst=largest,
        worst=worst,
    )


def _agreement(positions: Sequence[Position]) -> float | None:
    if not positions:
        return None
    return sum(each.token_a == each.token_b for each in positions) / len(positions)


def _failures(
    positions: int, sound: int, figures: Figures | None, bounds: Bounds | None
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
    return tuple(lines)


def _layer_failures(layers: Sequence[LayerError]) -> tuple[str, ...]:
    failed = [each for each in layers if not each.passed]
    lines = [
        f"{each.layer} ({each.slot}) alone is not finite{_where(each)}"
        if each.relative is None
        else f"{each.layer} ({each.slot}) alone is {each.relative:.2%} from vLLM's result"
        f"{_where(each)}; at most {each.bound or 0:.2%} is allowed"
        + (", and less for one element" if each.relative <= (each.bound or 0) else "")
        for each in failed[:_MOST_LAYER_LINES]
    ]
    if len(failed) > _MOST_LAYER_LINES:
        lines.append(f"and {len(failed) - _MOST_LAYER_LINES} more layers")
    return tuple(lines)


def _where(error: LayerError) -> str:
    return f" in {error.where}" if error.where else ""


def _notes(bits: Bits, figures: Figures | None, layers: Sequence[LayerError]) -> list[str]:
    notes = []
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
    if bits == "kept" and not layers:
        notes.append("no layer was compared alone, so that small errors of a few are not seen")
    return notes

"""Compares the steps of one phase: like with like, then what typical steps are made of."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from spark_prof.analyzers.comparing.context import context_effect
from spark_prof.analyzers.comparing.matching import (
    Matched,
    like_change,
    matched,
    size_rows,
    values_of,
    whole_change,
)
from spark_prof.analyzers.comparing.model import PhaseComparison, Side
from spark_prof.analyzers.comparing.parts import (
    Taken,
    conversions_change,
    kernel_parts,
    layer_parts,
    step_parts,
    typical_change,
    whole_layers,
)
from spark_prof.analyzers.comparing.ran import Charges
from spark_prof.analyzers.comparing.typical import typical_of

Floats = npt.NDArray[np.float64]


def compare_phase(
    sides: tuple[Sequence[Side], Sequence[Side]],
    charges: tuple[Sequence[Charges], Sequence[Charges]],
    phase: str,
) -> PhaseComparison | None:
    """The comparison of one phase; None where a recording has no such step.

    Args:
        sides: the recordings of the reference and of the other.
        charges: of each.
        phase: decode, prefill or unknown.
    """
    found = matched(sides, phase)
    if found is None:
        return None
    # Prompts of other lengths are comparable by the token only.
    by_token = phase == "prefill" and not found.alike
    divisors = [[_divisor(each, by_token) for each in side] for side in sides]
    lengths = [
        [
            values_of(each, _lengths(each) / divisor)
            for each, divisor in zip(side, divided, strict=True)
        ]
        for side, divided in zip(sides, divisors, strict=True)
    ]
    values = lengths[0], lengths[1]
    like = like_change(found, values)
    one_size = found.alike and len(found.sizes) == 1
    whole = like if one_size else whole_change(found, values)
    stable = charges[1][-1].stable
    a, b = (
        [
            _taken(found, each, charges[side][place], stable, divisors[side][place], (side, place))
            for place, each in enumerate(sides[side])
        ]
        for side in (0, 1)
    )
    typical = typical_change(a, b)
    return PhaseComparison(
        phase=phase,
        unit="prompt token" if by_token else "step",
        whole=whole,
        like=like,
        mix_us=whole.us - like.us,
        sizes=size_rows(found, values),
        alike=found.alike,
        fewest=found.fewest,
        typical=typical,
        parts=step_parts(a, b),
        residual_us=like.us - typical.us,
        conversions=conversions_change(a, b),
        layers=whole_layers(a, b),
        layer_parts=layer_parts(a, b),
        kernels=kernel_parts(a, b),
        context=context_effect(sides, found.groups) if phase == "decode" and found.alike else None,
    )


def _lengths(side: Side) -> Floats:
    return side.steps["step_us"].to_numpy(np.float64)


def _divisor(side: Side, by_token: bool) -> Floats:
    tokens = side.steps["prefill_tokens"].to_numpy(np.float64)
    return np.maximum(tokens, 1.0) if by_token else np.ones(len(tokens))


def _taken(
    found: Matched,
    side: Side,
    charges: Charges,
    stable: tuple[str, ...],
    divisor: Floats,
    place: tuple[int, int],
) -> Taken:
    """The steps of one recording, to be taken apart.

    Args:
        found: the steps of all.
        side: the recording.
        charges: of its kernels.
        stable: the stable names of all.
        divisor: of each of its steps.
        place: 0 for side a or 1 for side b, and which of its recordings it is.
    """
    typical = [
        typical_of(charges, group.places[place[0]][place[1]], group.weight, divisor)
        for group in found.groups
    ]
    # Of several names that mean the same the first one is shown.
    pairs = zip(charges.names[::-1].tolist(), charges.kernels.names[::-1], strict=True)
    return Taken(typical, side.report, stable, dict(pairs))

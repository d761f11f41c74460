"""Where the gain of side b over side a came from, from a recording of each."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from spark_prof.analyzers.swap_gain.model import (
    FOR_THE_HOST,
    Attribution,
    ComponentGain,
    KernelGain,
    SideSteps,
    Swapped,
    Untraced,
)
from spark_prof.analyzers.swap_gain.notes import notes_of
from spark_prof.analyzers.swap_gain.proof import proofs_of
from spark_prof.analyzers.swap_gain.side import Side, usual_batch_size
from spark_prof.analyzers.swap_gain.slots import touched_components
from spark_prof.analyzers.swap_gain.tables import (
    beside,
    component_gains,
    kernel_gains,
    layer_gains,
)
from spark_prof.analyzers.swap_gain.tracing import tracing_cost
from spark_prof.analyzers.swap_gain.waits import is_host_bound, with_measured_waits, without_waits
from spark_prof.traces.bundle import Bundle

_NO_GAIN = 0.01
"""Below this share of the step a gain is too small to be shared out."""

_MOVED = 0.01
"""From this share of the step on a component has moved."""


def summarize(
    a: Bundle,
    b: Bundle,
    swaps: Sequence[Swapped],
    untraced: Untraced | None = None,
    batch_size: int | None = None,
    rank: int = 0,
) -> Attribution:
    """The attribution of the gain of side b over side a.

    What tracing costs is found on side a alone, and taken off both sides; how far side b is then
    from what was measured is the residual. Nothing is scaled to fit. Where the device waits for the
    host there is no residual (`waits`).

    Args:
        a: a recording of decode steps of side a, every one of them watched.
        b: one of side b, at the same batch size and context, from the same engine or another one.
        swaps: the live swaps of both sides, one each module.
        untraced: times of a step without recording.
        batch_size: requests that decode in a step; None for the most frequent one of side a.
        rank: whose kernels.

    Raises:
        CommandError: a bundle has no such rank, or no two such steps after one another.
    """
    size = usual_batch_size(a, rank) if batch_size is None else batch_size
    sides = Side.read(a, rank, size), Side.read(b, rank, size)
    bound = is_host_bound(sides)
    cost = _cost(sides[0], untraced.a_us, bound) if untraced else 0.0
    touched = touched_components(swaps)

    def table(*keys: str) -> pd.DataFrame:
        found = beside(*sides, keys, cost)
        if not untraced or not bound:
            return found
        if untraced.host_ahead:
            return without_waits(found)
        return with_measured_waits(found, sides, untraced, cost)

    components = component_gains(table("component"), touched)
    kernels = kernel_gains(beside(*sides, ["name", "component"], cost), touched)
    steps = (
        _side_steps(
            sides[0], sum(row.a_us for row in components), untraced.a_us if untraced else None
        ),
        _side_steps(
            sides[1], sum(row.b_us for row in components), untraced.b_us if untraced else None
        ),
    )
    explained = steps[0].corrected_us - steps[1].corrected_us
    gain = untraced.a_us - untraced.b_us if untraced else None
    checked = untraced is not None and (untraced.host_ahead or not bound)
    residual = gain - explained if gain is not None and checked else None
    step = steps[0].corrected_us
    return Attribution(
        batch_size=size,
        a=steps[0],
        b=steps[1],
        tracing_us=cost / 1e3,
        gain_us=gain,
        explained_us=explained,
        residual_us=residual,
        residual_share=_share(residual, gain, step),
        components=components,
        layers=layer_gains(table("layer", "component"), touched),
        kernels=kernels,
        proofs=proofs_of(swaps, beside(*sides, ["layer", "component", "name"], cost)),
        moved=tuple(
            row
            for row in components
            if not row.touched
            and row.component != FOR_THE_HOST
            and abs(row.saved_us) >= max(_MOVED * step, row.noise_us)
        ),
        appeared=tuple(row for row in kernels if _only(row, row.calls_b, row.calls_a)),
        vanished=tuple(row for row in kernels if _only(row, row.calls_a, row.calls_b)),
        notes=(*_host_note(sides, components, untraced), *notes_of(steps, components, untraced)),
    )


def _host_note(
    sides: tuple[Side, Side], components: Sequence[ComponentGain], untraced: Untraced | None
) -> tuple[str, ...]:
    if not is_host_bound(sides) or untraced is None:
        return ()
    waited = (
        f"while recorded the device waited {sides[0].waits_us:.0f} us of a step for it on side a "
        f"and {sides[1].waits_us:.0f} us on side b"
    )
    if untraced.host_ahead:
        return (
            f"Recording slows the host: {waited}. While nothing was recorded the host was seen to "
            "be ahead of the device, so these waits are left out.",
        )
    waits = next(row for row in components if row.component == FOR_THE_HOST)
    return (
        f"The host is the slower one: {waited}. Recording slows the host, so the row of these "
        "waits is what is left of the step measured without recording, "
        f"{waits.a_us:.0f} and {waits.b_us:.0f} us, and nothing checks it.",
    )


def _cost(side: Side, untraced_us: float, host_bound: bool) -> float:
    """What tracing adds to a gap, in ns: all that a step takes longer, or its device's own time."""
    rows = side.middle_rows
    gaps = rows["gap_ns"].to_numpy()
    longer_us = side.traced_us - untraced_us
    if host_bound:
        gaps = gaps[rows["component"].to_numpy() != FOR_THE_HOST]
        longer_us -= side.waits_us
    return tracing_cost(gaps, longer_us * 1e3 * len(side.middle.steps))


def _side_steps(side: Side, corrected_us: float, untraced_us: float | None) -> SideSteps:
    rows = side.middle_rows
    us = 1e3 * len(side.middle.steps)
    gap = rows["gap_ns"].to_numpy()
    busy = float(rows["busy_ns"].sum())
    return SideSteps(
        steps=side.steps,
        traced_us=side.traced_us,
        corrected_us=corrected_us,
        untraced_us=untraced_us,
        kernels=float(rows["call"].sum()) / len(side.middle.steps),
        gaps=float((gap > 0).sum()) / len(side.middle.steps),
        overlap_us=(float(rows["took_ns"].to_numpy(np.float64).sum()) - busy) / us,
        context_tokens=side.context_tokens,
    )


def _only(row: KernelGain, here: float, there: float) -> bool:
    """Whether an untouched component's kernel belongs to the usual step of one side alone."""
    return not row.touched and there == 0 and here >= 0.5


def _share(residual: float | None, gain: float | None, step: float) -> float | None:
    if residual is None or gain is None or abs(gain) < _NO_GAIN * step:
        return None
    return residual / gain

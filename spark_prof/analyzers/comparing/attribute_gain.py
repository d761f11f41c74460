"""Where the gain of side b over side a came from, from a recording of each.

Whoever records a step slows the host down more than the device. Where the device waits for the
host, the recorded waits say little about a step that is not recorded: then the waits are what is
left of the measured step beside the device's own time. What the device alone needs may have been
measured, too: then that checks the components, else nothing does. Where the host was seen to be
ahead while nothing was recorded, there are no such waits.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from itertools import starmap
from typing import TypeVar

import numpy as np
import pandas as pd

from spark_prof.analyzers.comparing.swap_attribution import (
    FOR_THE_HOST,
    NO_GAIN,
    Attribution,
    ComponentGain,
    KernelGain,
    LayerGain,
    SideSteps,
    SwapOnSide,
    Untraced,
)
from spark_prof.analyzers.comparing.swap_proof import proofs_of, touched_components
from spark_prof.analyzers.comparing.swapped_steps import SwappedSteps, read_steps, tracing_cost
from spark_prof.arrays import Int64s
from spark_prof.traces.bundle import Bundle

_MOVED = 0.01  # from this share of the step on a component has moved

_HOST_BOUND = 0.02  # from this share of a recorded step on the waits for the host matter

_TWO_SIDED_95 = 1.96
_FEW = 20
_CONTEXTS_APART = 0.05
_EXACT = 1e-3
_NO_COMPONENT = 0.01

_Sides = tuple[SwappedSteps, SwappedSteps]


def summarize(
    a: Bundle,
    b: Bundle,
    swaps: Sequence[SwapOnSide],
    untraced: Untraced | None = None,
    batch_size: int = 1,
) -> Attribution:
    """The attribution of the gain of side b over side a.

    What tracing costs is found on side a alone, and taken off both sides; how far side b is then
    from what was measured is the residual. Nothing is scaled to fit.
    Both recordings are of decode steps at the same batch size and context, all watched.
    """
    sides = read_steps(a, batch_size), read_steps(b, batch_size)
    bound = any(side.waits_us > _HOST_BOUND * side.traced_us for side in sides)
    cost = _tracing_us(sides[0], untraced, bound) if untraced else 0.0
    touched = touched_components(swaps)

    def table(*keys: str) -> pd.DataFrame:
        rows = beside(sides, keys, cost)
        rows["touched"] = rows["component"].isin(touched)
        if untraced and bound:
            _replace_waits(rows, sides, untraced, cost)
        return rows

    components = tuple(_gains(ComponentGain, table("component")))
    kernels = _kernel_gains(table("component", "name"))
    a_us, b_us = (untraced.a_us, untraced.b_us) if untraced else (None, None)
    steps = (
        _side_steps(sides[0], sum(row.a_us for row in components), a_us),
        _side_steps(sides[1], sum(row.b_us for row in components), b_us),
    )
    step = steps[0].corrected_us
    explained = step - steps[1].corrected_us
    gain = untraced.a_us - untraced.b_us if untraced else None
    checked = untraced and (untraced.host_ahead or not bound or untraced.device_us is not None)
    residual = gain - explained if gain is not None and checked else None
    shared = residual is not None and gain is not None and abs(gain) >= NO_GAIN * step
    notes = _host_notes(sides, components, untraced) if untraced and bound else ()
    return Attribution(
        batch_size=batch_size,
        a=steps[0],
        b=steps[1],
        tracing_us=cost,
        gain_us=gain,
        explained_us=explained,
        residual_us=residual,
        residual_share=residual / gain if shared and residual is not None and gain else None,
        components=components,
        layers=tuple(map(_with_layer, _gains(LayerGain, table("layer", "component")))),
        kernels=kernels,
        proofs=proofs_of(swaps, table("layer", "component", "name")),
        moved=_moved(components, step),
        # Kernels of untouched components that belong to the usual step of one side alone.
        appeared=tuple(r for r in kernels if not r.touched and r.calls_a == 0 and r.calls_b >= 0.5),
        vanished=tuple(r for r in kernels if not r.touched and r.calls_b == 0 and r.calls_a >= 0.5),
        notes=(*notes, *_notes(steps, components, untraced)),
    )


def _kernel_gains(table: pd.DataFrame) -> tuple[KernelGain, ...]:
    """The kernels by what they save, the most first."""
    calls = table.rename(columns={"kernels_a": "calls_a", "kernels_b": "calls_b"})
    gains = _gains(KernelGain, calls[calls["component"] != FOR_THE_HOST])
    return tuple(sorted(gains, key=lambda row: (-abs(row.saved_us), row.name, row.component)))


def _with_layer(row: LayerGain) -> LayerGain:
    return replace(row, layer=None) if row.layer == -1 else row


def _moved(components: Sequence[ComponentGain], step_us: float) -> tuple[ComponentGain, ...]:
    """The components that changed although no swap touches them."""
    return tuple(
        row
        for row in components
        if not row.touched
        and row.component != FOR_THE_HOST
        and abs(row.saved_us) >= max(_MOVED * step_us, row.noise_us)
    )


def beside(sides: _Sides, keys: Sequence[str], cost: float) -> pd.DataFrame:
    """The times of both sides' typical steps; what a side does not have is 0 there.

    Returns:
        One row each combination of the keys, some of layer (-1 for none), component and name, in
        their order; `noise_us` is the 95 % half-width of `saved_us`.
    """
    rows = pd.concat([side.rows[list(keys)] for side in sides])
    groups = rows.groupby(list(keys), observed=True)
    combinations = groups.size().index.to_frame(index=False)
    codes = np.split(np.asarray(groups.ngroup(), np.int64), [len(sides[0].rows)])
    a, b = (
        _means(side, code, len(combinations), cost) for side, code in zip(sides, codes, strict=True)
    )
    return combinations.assign(
        a_us=a["us"],
        b_us=b["us"],
        saved_us=a["us"] - b["us"],
        noise_us=_TWO_SIDED_95 * np.hypot(a["error"], b["error"]),
        gap_a_us=a["gap_us"],
        gap_b_us=b["gap_us"],
        kernels_a=a["calls"],
        kernels_b=b["calls"],
    )


def _means(side: SwappedSteps, code: Int64s, groups: int, cost: float) -> pd.DataFrame:
    """Of each group the time of a typical step, what of it is gaps, calls, and the error."""
    step, us, calls = (side.rows[name].to_numpy() for name in ("step", "us", "calls"))
    gap = side.gaps_us(cost)
    shape = groups, len(side.length_us)
    cell = code * shape[1] + step
    tables = {
        name: np.asarray(np.bincount(cell, values, math.prod(shape)), np.float64).reshape(shape)
        for name, values in (("us", us + gap), ("gap_us", gap), ("calls", calls))
    }
    means = {name: side.typical.mean(values) for name, values in tables.items()}
    return pd.DataFrame(means | {"error": side.typical.error(tables["us"])})


def _replace_waits(table: pd.DataFrame, sides: _Sides, untraced: Untraced, cost: float) -> None:
    """Makes the waits for the host those of a step that is not recorded."""
    rows = table["component"] == FOR_THE_HOST
    if untraced.host_ahead:
        table.loc[rows, ["a_us", "gap_a_us", "b_us", "gap_b_us", "saved_us", "noise_us"]] = 0.0
        return
    measured = untraced.a_us, untraced.b_us
    for place, (name, side) in enumerate(zip("ab", sides, strict=True)):
        if untraced.device_us:
            device_us = untraced.device_us[place]
        else:
            busy = side.rows["us"] + side.gaps_us(cost)
            device_us = side.a_step(busy.where(~side.waits, 0.0))
        table.loc[rows, [f"{name}_us", f"gap_{name}_us"]] = max(0.0, measured[place] - device_us)
    table.loc[rows, "saved_us"] = table["a_us"] - table["b_us"]


_Gain = TypeVar("_Gain", ComponentGain, LayerGain, KernelGain)


def _gains(kind: type[_Gain], table: pd.DataFrame) -> Iterator[_Gain]:
    """The rows of a table, of whose columns each record has some."""
    names = [field.name for field in fields(kind)]
    return starmap(kind, table[names].itertuples(index=False, name=None))


def _tracing_us(side: SwappedSteps, untraced: Untraced, host_bound: bool) -> float:
    """What tracing adds to a gap: all that a step takes longer, or its device's own time."""
    counts, longer_us = side.counts, side.traced_us - untraced.a_us
    if host_bound:
        counts, longer_us = counts & ~side.waits, longer_us - side.waits_us
        if untraced.device_us:
            longer_us += untraced.a_us - untraced.device_us[0]
    return tracing_cost(side.rows["gap_us"].to_numpy()[counts], longer_us * len(side.typical.steps))


def _side_steps(side: SwappedSteps, corrected_us: float, untraced_us: float | None) -> SideSteps:
    return SideSteps(
        steps=len(side.length_us),
        traced_us=side.traced_us,
        corrected_us=corrected_us,
        untraced_us=untraced_us,
        kernels=side.a_step(side.rows["calls"]),
        gaps=side.a_step(side.rows["gap_us"] > 0),
        overlap_us=side.a_step(side.rows["took_us"] - side.rows["us"]),
        context_tokens=side.context_tokens,
    )


def _host_notes(
    sides: _Sides, components: Sequence[ComponentGain], untraced: Untraced
) -> Iterator[str]:
    waited = (
        f"while recorded the device waited {sides[0].waits_us:.0f} us of a step for it on side a "
        f"and {sides[1].waits_us:.0f} us on side b"
    )
    if untraced.host_ahead:
        yield (
            f"Recording slows the host: {waited}. While nothing was recorded the host was seen to "
            "be ahead of the device, so these waits are left out."
        )
        return
    waits = next(row for row in components if row.component == FOR_THE_HOST)
    both = f"{waits.a_us:.0f} and {waits.b_us:.0f} us"
    if untraced.device_us:
        yield (
            f"The host is the slower one: {waited}. Recording slows the host, so the row of these "
            f"waits, {both}, is what a step takes beyond what the device alone needs, both "
            "measured without recording."
        )
        return
    yield (
        f"The host is the slower one: {waited}. Recording slows the host, so the row of these "
        f"waits is what is left of the step measured without recording, {both}, and nothing "
        "checks it."
    )


def _notes(
    steps: tuple[SideSteps, SideSteps],
    components: Sequence[ComponentGain],
    untraced: Untraced | None,
) -> Iterator[str]:
    a, b = steps
    if not any(row.touched for row in components):
        yield (
            "No swap tells the sides apart, so that no component is expected to change: for sides "
            "that differ in options, what moved is what they changed."
        )
    if untraced is None:
        yield (
            "What tracing costs is not known: no times without recording were given, and all times "
            "include it."
        )
    elif (beyond := a.corrected_us - untraced.a_us) > _EXACT * untraced.a_us:
        yield (
            f"Tracing costs side a {a.traced_us - untraced.a_us:.1f} us a step, {beyond:.1f} us "
            "more than all of its gaps: that is left in the times of its kernels."
        )
    elif beyond < -_EXACT * untraced.a_us:
        yield (
            f"Recorded, a step of side a takes {-beyond:.1f} us less than without recording: "
            "nothing was taken off, and its rows do not reach what was measured."
        )
    for name, side in (("a", a), ("b", b)):
        if side.steps < _FEW:
            yield f"Side {name} has {side.steps} recorded steps; record {_FEW} or more."
    if abs(a.context_tokens - b.context_tokens) > _CONTEXTS_APART * max(
        a.context_tokens, b.context_tokens
    ):
        yield (
            f"The KV cache held {a.context_tokens:,.0f} tokens on side a and "
            f"{b.context_tokens:,.0f} on side b: attention differs by that, too."
        )
    for row in components:
        for name, us, side in (("a", row.a_us, a), ("b", row.b_us, b)):
            if row.component == "other" and us > _NO_COMPONENT * side.corrected_us:
                yield f"{us:.1f} us of a step of side {name} have no component."

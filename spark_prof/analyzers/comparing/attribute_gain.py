"""Where the gain of side b over side a came from, from a recording of each."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from spark_prof.analyzers.comparing.swap_attribution import (
    FOR_THE_HOST,
    Attribution,
    ComponentGain,
    KernelGain,
    LayerGain,
    SideSteps,
    Swapped,
    Untraced,
)
from spark_prof.analyzers.comparing.swap_proof import proofs_of, touched_components
from spark_prof.analyzers.comparing.swapped_steps import (
    Side,
    is_host_bound,
    tracing_cost,
    usual_batch_size,
    with_measured_waits,
    without_tracing,
    without_waits,
)
from spark_prof.traces.bundle import Bundle
from spark_prof.vocabulary import COMPONENTS

_FEW = 20
_CONTEXTS_APART = 0.05
_EXACT = 1e-3
_SHARE = 0.01


def notes_of(
    steps: tuple[SideSteps, SideSteps],
    components: Sequence[ComponentGain],
    untraced: Untraced | None,
) -> tuple[str, ...]:
    """One line each.

    Args:
        steps: of sides a and b.
        components: the rows.
        untraced: what was measured without recording.
    """
    a, b = steps
    lines = []
    if not any(row.touched for row in components):
        lines.append(
            "No swap tells the sides apart, so that no component is expected to change: for sides "
            "that differ in options, what moved is what they changed."
        )
    if untraced is None:
        lines.append(
            "What tracing costs is not known: no times without recording were given, and all times "
            "include it."
        )
    elif (beyond := a.corrected_us - untraced.a_us) > _EXACT * untraced.a_us:
        lines.append(
            f"Tracing costs side a {a.traced_us - untraced.a_us:.1f} us a step, {beyond:.1f} us "
            "more than all of its gaps: that is left in the times of its kernels."
        )
    elif beyond < -_EXACT * untraced.a_us:
        lines.append(
            f"Recorded, a step of side a takes {-beyond:.1f} us less than without recording: "
            "nothing was taken off, and its rows do not reach what was measured."
        )
    for name, side in (("a", a), ("b", b)):
        if side.steps < _FEW:
            lines.append(f"Side {name} has {side.steps} recorded steps; record {_FEW} or more.")
    contexts = sorted((a.context_tokens, b.context_tokens))
    if contexts[1] - contexts[0] > _CONTEXTS_APART * contexts[1]:
        lines.append(
            f"The KV cache held {a.context_tokens:,.0f} tokens on side a and "
            f"{b.context_tokens:,.0f} on side b: attention differs by that, too."
        )
    for row in components:
        for name, us, side in (("a", row.a_us, a), ("b", row.b_us, b)):
            if row.component == "other" and us > _SHARE * side.corrected_us:
                lines.append(f"{us:.1f} us of a step of side {name} have no component.")
    return tuple(lines)


_ORDER = {name: place for place, name in enumerate((*COMPONENTS, FOR_THE_HOST))}
_TWO_SIDED_95 = 1.96
_BLOCK = 4096
"""Rows of a table that are computed at a time: damaged recordings have very many."""

_GAPS = ["gap_a_us", "gap_b_us"]

Floats = npt.NDArray[np.float64]


def per_step(side: Side, keys: Sequence[str], cost: float) -> pd.DataFrame:
    """Means over the side's middle steps of each combination of the keys.

    Args:
        side: the side.
        keys: columns of its rows.
        cost: what tracing adds to a gap, in ns.

    Returns:
        Indexed by the keys: `us`, `gap_us` (what of it is gaps), `kernels`, and `error`, the
        standard error of `us`.
    """
    groups = side.rows.groupby(list(keys), sort=True)
    number = groups.ngroup().to_numpy().astype(np.int64)
    order = np.argsort(number, kind="stable")
    rows, number = side.rows.iloc[order], number[order]
    found = []
    for first in range(0, groups.ngroups, _BLOCK):
        count = min(_BLOCK, groups.ngroups - first)
        block = slice(*np.searchsorted(number, (first, first + count)))
        found.append(_of_groups(side, rows.iloc[block], number[block] - first, count, cost))
    return pd.concat(found).set_axis(groups.size().index)


def _of_groups(
    side: Side, rows: pd.DataFrame, number: npt.NDArray[np.int64], count: int, cost: float
) -> pd.DataFrame:
    """What `per_step` says of groups.

    Args:
        side: the side.
        rows: theirs.
        number: of each row's group, from 0.
        count: how many groups.
        cost: what tracing adds to a gap, in ns.
    """
    place = number * side.steps + rows["at"].to_numpy()
    gap = without_tracing(rows["gap_ns"].to_numpy(), cost) / 1e3
    busy = rows["busy_ns"].to_numpy() / 1e3

    def by_step(values: npt.NDArray[Any]) -> Floats:
        sums = np.bincount(place, values, count * side.steps)
        return sums.astype(np.float64).reshape(-1, side.steps)

    us = by_step(busy + gap)
    return pd.DataFrame(
        {
            "us": side.middle.mean(us),
            "gap_us": side.middle.mean(by_step(gap)),
            "kernels": side.middle.mean(by_step(rows["call"].to_numpy())),
            "error": side.middle.error(us),
        }
    )


def beside(a: Side, b: Side, keys: Sequence[str], cost: float) -> pd.DataFrame:
    """What `per_step` says of both sides; what a side does not have is 0 there.

    Returns:
        The keys and `a_us`, `b_us`, `saved_us`, `noise_us` (its 95 % half-width), `gap_a_us`,
        `gap_b_us`, `kernels_a` and `kernels_b`, one row each combination of the keys.
    """
    left, right = per_step(a, keys, cost), per_step(b, keys, cost)
    index = left.index.union(right.index)
    left, right = left.reindex(index, fill_value=0.0), right.reindex(index, fill_value=0.0)
    columns = {
        "a_us": left["us"],
        "b_us": right["us"],
        "saved_us": left["us"] - right["us"],
        "noise_us": _TWO_SIDED_95 * np.hypot(left["error"], right["error"]),
        "gap_a_us": left["gap_us"],
        "gap_b_us": right["gap_us"],
        "kernels_a": left["kernels"],
        "kernels_b": right["kernels"],
    }
    return pd.DataFrame(columns, index=index).reset_index()


def component_gains(table: pd.DataFrame, touched: Collection[str]) -> tuple[ComponentGain, ...]:
    """One row each component, in the order in which a decoder runs them.

    Args:
        table: from `beside`, by component.
        touched: components that a swap changes.
    """
    rows = (ComponentGain(**row, touched=row["component"] in touched) for row in _records(table))
    return tuple(sorted(rows, key=lambda row: _ORDER[row.component]))


def layer_gains(table: pd.DataFrame, touched: Collection[str]) -> tuple[LayerGain, ...]:
    """One row each layer and component; those outside of the layers come first.

    Args:
        table: from `beside`, by layer and component.
        touched: components that a swap changes.
    """
    rows = [
        LayerGain(
            **row | {"layer": row["layer"] if row["layer"] >= 0 else None},
            touched=row["component"] in touched,
        )
        for row in _records(table.drop(columns=_GAPS))
    ]
    return tuple(
        sorted(rows, key=lambda r: (-1 if r.layer is None else r.layer, _ORDER[r.component]))
    )


def kernel_gains(table: pd.DataFrame, touched: Collection[str]) -> tuple[KernelGain, ...]:
    """One row each name and component, the largest changes first.

    Args:
        table: from `beside`, by name and component.
        touched: components that a swap changes.
    """
    found = table[table["component"] != FOR_THE_HOST].drop(columns=_GAPS)
    found = found.rename(columns={"kernels_a": "calls_a", "kernels_b": "calls_b"})
    rows = (KernelGain(**row, touched=row["component"] in touched) for row in _records(found))
    return tuple(sorted(rows, key=lambda row: (-abs(row.saved_us), row.name, row.component)))


def _records(table: pd.DataFrame) -> Iterator[dict[str, Any]]:
    """The rows, as what a row's dataclass is made of."""
    for record in table.to_dict("records"):
        yield {str(name): value for name, value in record.items()}


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

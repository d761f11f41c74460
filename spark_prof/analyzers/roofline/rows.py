"""Holds what kernels need against what they take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pandas as pd

from spark_prof.analyzers.model import KernelRow
from spark_prof.analyzers.roofline.launches import Charge
from spark_prof.analyzers.roofline.model import Ceilings, RooflineRow
from spark_prof.analyzers.roofline.moved import Moved
from spark_prof.analyzers.roofline.needs import Need

__all__ = ["Place", "Sum", "add_up", "rows_of"]

Place = tuple[str, str]
"""Component and name of a kernel."""

_NAMED = 3
_LONGEST_EMPTY_US = 2.0
"""A run may have no small kernel: more than this is not taken for what an empty one lasts.

The shortest kernels of the H100 recordings in tests/data last 0.9 us.
"""

_COUNTED_FROM = 1 << 20
"""Bytes of a call below which a cache keeps too much for counters to be held against them."""


@dataclass
class Sum:
    """What the kernels of one name need for one component in a step."""

    streamed: float = 0.0
    other: float = 0.0
    operations: float = 0.0
    what: dict[str, None] = field(default_factory=dict)
    basis: dict[str, None] = field(default_factory=dict)
    expected: bool = False

    def add(self, need: Need, share: float, what: str, basis: str) -> None:
        """Adds a share of a piece of work."""
        self.streamed += need.streamed * share
        self.other += need.other * share
        self.operations += need.operations * share
        self.what[f"{what}: {need.part}" if need.part else what] = None
        self.basis[basis] = None
        self.expected |= need.expected


def add_up(
    sums: dict[Place, Sum], charges: Sequence[Charge], needs: Sequence[Need], weight: float
) -> None:
    """Adds what one group of steps needs.

    Args:
        sums: what is added to.
        charges: who does the work of a step.
        needs: what each of these charges needs as a whole.
        weight: the group's share of the steps.
    """
    for charge, need in zip(charges, needs, strict=True):
        place = (charge.component, charge.name)
        found = sums.setdefault(place, Sum())
        found.add(need, charge.share * weight, charge.work.what, charge.basis)


def rows_of(
    times: pd.DataFrame,
    steps: int,
    sums: Mapping[Place, Sum],
    kernels: Mapping[Place, KernelRow],
    moved: Mapping[Place, Moved],
    ceilings: Ceilings,
    ms_per_us: float | None,
) -> tuple[RooflineRow, ...]:
    """One row a kernel and component, what has most time above its floor first.

    Args:
        times: name, component, ns and calls of the phase's kernels.
        steps: how many steps that was.
        sums: what their kernels need in a step.
        kernels: what is known about them.
        moved: what they really read.
        ceilings: of the GPU.
        ms_per_us: milliseconds per token of a microsecond in each step; None where unknown.
    """
    totals = times.groupby(["component", "name"], observed=True)[["ns", "calls"]].sum()
    found = [
        ((str(component), str(name)), ns / 1e3 / steps, calls / steps)
        for (component, name), ns, calls in totals.itertuples(name=None)
        if calls
    ]
    smallest = ceilings.smallest_kernel_us
    if smallest is None:
        smallest = min((us / calls for _, us, calls in found), default=0.0)
        smallest = min(smallest, _LONGEST_EMPTY_US)
    rows = [
        _row(place, us, calls, sums.get(place), kernels.get(place), moved.get(place), ceilings,
             smallest, ms_per_us)
        for place, us, calls in found
    ]  # fmt: skip
    return tuple(sorted(rows, key=lambda row: (-(row.left_us or 0.0), -row.us * row.calls)))


def _row(
    place: Place,
    us: float,
    calls: float,
    need: Sum | None,
    kernel: KernelRow | None,
    moved: Moved | None,
    ceilings: Ceilings,
    smallest_us: float,
    ms_per_us: float | None,
) -> RooflineRow:
    component, name = place
    total = None if need is None else (need.streamed + need.other) / calls
    streamed = need.streamed / calls if need else 0.0
    operations = need.operations / calls if need else 0.0
    each = us / calls
    floor, limiter = _floor(total, operations, _peak(kernel, ceilings), ceilings, smallest_us)
    rate = total / each * 1e6 if total is not None and each else None
    left = max(each - floor, 0.0) * calls if floor is not None else None
    enough = moved is not None and moved.streamed >= _COUNTED_FROM
    enough = enough and not (need and need.expected)
    return RooflineRow(
        name=name,
        component=component,
        calls=calls,
        us=each,
        needed_bytes=total,
        streamed_bytes=streamed,
        operations=operations,
        what=_joined(need.what) if need else "",
        basis=_joined(need.basis) if need else "",
        expected=need.expected if need else False,
        bandwidth=rate,
        of_data_sheet=rate / ceilings.data_sheet.value if rate and ceilings.data_sheet else None,
        of_reached=rate / ceilings.reached.value if rate and ceilings.reached else None,
        floor_us=floor,
        limiter=limiter,
        left_us=left,
        left_ms_per_token=left * ms_per_us if left is not None and ms_per_us else None,
        read_bytes=moved.read if moved else None,
        read_by=moved.by if moved else "",
        amplification=moved.read / moved.streamed if moved and enough else None,
    )


def _peak(kernel: KernelRow | None, ceilings: Ceilings) -> float | None:
    if kernel is None:
        return None
    return ceilings.peak("fp32" if kernel.engine == "cuda-core" else kernel.precision)


def _floor(
    needed: float | None,
    operations: float,
    peak: float | None,
    ceilings: Ceilings,
    smallest_us: float,
) -> tuple[float | None, str | None]:
    """What a call takes at least, and what that is."""
    bandwidth = ceilings.bandwidth
    if needed is None or bandwidth is None:
        return None, None
    moving = needed / bandwidth.value * 1e6
    calculating = operations / peak * 1e6 if peak else 0.0
    if max(moving, calculating) < smallest_us:
        return max(moving, calculating), "latency"
    return (moving, "memory") if moving >= calculating else (calculating, "arithmetic")


def _joined(words: Mapping[str, None]) -> str:
    shown = list(words)[:_NAMED]
    return ", ".join(shown) + (" and others" if len(words) > _NAMED else "")

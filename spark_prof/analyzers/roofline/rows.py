"""Holds what kernels need against what they take, and against what counters saw them read."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf, nan
from statistics import fmean
from typing import Any, NamedTuple, TypeVar

import pandas as pd

from spark_prof.analyzers.breakdown import KernelRow, TypicalKernel
from spark_prof.analyzers.classify.classifier import spelling
from spark_prof.analyzers.counters.counter_batches import Counters
from spark_prof.analyzers.roofline.needs import LayerWork
from spark_prof.analyzers.roofline.nodes import NodeShares
from spark_prof.analyzers.roofline.roofline_rows import (
    Ceilings,
    Place,
    RooflineRow,
    starts_early,
)
from spark_prof.arrays import exact
from spark_prof.vocabulary import BASES

_METRIC = "dram__bytes_read.sum"
_UNITS = {"": 1.0, "byte": 1.0, "kbyte": 1e3, "mbyte": 1e6, "gbyte": 1e9}
"""Nsight Compute's units are decimal."""


_Key = TypeVar("_Key", bound=Hashable)


class Moved(NamedTuple):
    """Bytes that one call of a kernel read, and what it had to stream in those steps."""

    read: float
    streamed: float
    by: str


def by_sampling(
    counters: Counters | None,
    streamed: Mapping[int, Mapping[Place, float]],
    places: Iterable[Place],
) -> dict[Place, Moved]:
    """What kernels read, from the batch size that was sampled most.

    Counters tell kernels apart by component and name: one that has several roles is left out.
    """
    batches = counters.batches if counters else ()
    batch = next((batch for batch in batches if batch.tokens in streamed), None)
    if batch is None:
        return {}
    alone = _alone(places, lambda place: (place.component, place.name))
    needed = streamed[batch.tokens]
    return {
        place: Moved(row.read_bytes, needed.get(place, 0.0) / row.calls, "PM sampling")
        for row in batch.rows
        if row.read_bytes is not None and row.calls
        if (place := alone.get((row.component, row.name)))
    }


def by_single_kernels(metrics: pd.DataFrame, needed: Mapping[Place, float]) -> dict[Place, Moved]:
    """What kernels read, from those that Nsight Compute measured alone.

    A kernel that has several components or roles is left out: which of its calls was measured is
    not known.
    """
    rows = metrics[(metrics["metric"] == _METRIC).to_numpy()]
    read: dict[str, list[float]] = defaultdict(list)
    for name, value, unit in zip(rows["name"], rows["value"], rows["unit"], strict=True):
        byte_count = float(value) * _UNITS.get(str(unit).lower(), nan)
        if 0 <= byte_count < inf:
            read[spelling(str(name))].append(byte_count)
    alone = _alone(needed, lambda place: spelling(place.name))
    return {
        alone[name]: Moved(fmean(values), needed[alone[name]], "Nsight Compute")
        for name, values in read.items()
        if name in alone
    }


def _alone(places: Iterable[Place], key: Callable[[Place], _Key]) -> dict[_Key, Place]:
    """The places by that key, those that share one left out."""
    keys = {place: key(place) for place in places}
    times = Counter(keys.values())
    return {name: place for place, name in keys.items() if times[name] == 1}


_NAMED = 3
_LONGEST_EMPTY_US = 2.0
"""A run may have no small kernel: more than this is not taken for what an empty one lasts.

The shortest kernels of the H100 recordings in tests/data last 0.9 us.
"""

_EXCHANGE = "exchange"
"""Instead of memory or arithmetic: its time holds waits for other ranks, which nothing tells."""

_COUNTED_FROM = 1 << 20
"""Bytes of a call below which a cache keeps too much for counters to be held against them."""


@dataclass
class Sum:
    """What the kernels of one place need in a step."""

    streamed: float = 0.0
    other: float = 0.0
    operations: float = 0.0
    works: dict[str, None] = field(default_factory=dict)
    weights: dict[str, None] = field(default_factory=dict)
    product: str = ""  # the first of several products of a component, such as w13
    basis: dict[str, None] = field(default_factory=dict)
    expected: bool = False

    def add(self, work: LayerWork, share: float, basis: str) -> None:
        """Adds a share of a piece of work."""
        need = work.need
        self.streamed += need.streamed * share
        self.other += need.other * share
        self.operations += need.operations * share
        self.works[f"{work.name}: {need.part}" if need.part else work.name] = None
        if work.weights is not None and work.name == work.weights.name:
            self.weights[work.name] = None
        self.product = self.product or (work.name if need.part else "")
        self.basis[basis] = None
        self.expected |= need.expected


def rows_of(
    typical: Sequence[TypicalKernel],
    steps: int,
    sums: Mapping[Place, Sum],
    kernels: Mapping[tuple[str, str], KernelRow],
    moved: Mapping[Place, Moved],
    ceilings: Ceilings,
    ms_per_us: float | None,
    nodes: Mapping[Place, NodeShares],
) -> tuple[RooflineRow, ...]:
    """One row a kernel of the phase's typical step, what has most above its lower bound first."""
    typical = [one for one in typical if one.all_calls and one.calls]
    smallest = ceilings.smallest_kernel_us
    if smallest is None:
        smallest = min((one.kernel_us / one.calls for one in typical), default=0.0)
        smallest = min(smallest, _LONGEST_EMPTY_US)
    rows = []  # what they need is known of a mean step, by its calls
    for one in typical:
        place = Place(one.component, one.role, one.name)
        calls, mean = one.calls, one.all_calls / steps
        need, us_per_call = sums.get(place, Sum()), one.kernel_us / calls
        total = (need.streamed + need.other) / mean if place in sums else None
        operations = need.operations / mean
        kernel = kernels.get((place.component, place.name))
        on_cuda_cores = kernel is not None and kernel.engine == "cuda-core"
        peak = ceilings.peak("fp32" if on_cuda_cores else kernel.precision if kernel else None)
        floor, limiter = _floor(total, operations, peak, ceilings, smallest)
        waits = kernel is not None and kernel.exchanges is not None
        limiter = _EXCHANGE if waits and limiter else limiter
        has_rate = bool(us_per_call) and not starts_early(us_per_call, one.ahead_us)
        has_rate &= not waits
        rate = total / us_per_call * 1e6 if total is not None and has_rate else None
        left = max(us_per_call - floor, 0.0) * calls if floor is not None and not waits else None
        read, expected_read, by = moved.get(place, (None, 0.0, ""))
        shares = nodes.get(place, NodeShares())
        comparable = expected_read >= _COUNTED_FROM and not need.expected
        sheet, reached = ceilings.data_sheet, ceilings.reached
        row = RooflineRow(
            name=place.name,
            component=place.component,
            calls=calls,
            step_us=one.kernel_us,
            needed_bytes=total,
            streamed_bytes=need.streamed / mean,
            operations=operations,
            what=_joined(need.works),
            product=need.product,
            weights=(*need.weights,)[:_NAMED],
            basis=_joined(need.basis),
            expected=need.expected,
            bandwidth=rate,
            of_data_sheet=rate / sheet.value if rate and sheet else None,
            of_reached=rate / reached.value if rate and reached else None,
            floor_us=floor,
            limiter=limiter,
            left_us=left,
            left_ms_per_token=left * ms_per_us if left is not None and ms_per_us else None,
            read_bytes=read,
            read_by=by,
            amplification=read / expected_read if read is not None and comparable else None,
            role=place.role,
            owner_basis=one.basis,
            ahead_us=one.ahead_us,
            nodes=shares.counted * calls,
            node_us=exact(shares.us(ceilings.node, floor) * calls) if ceilings.node else None,
        )
        rows.append(row)
    return tuple(sorted(rows, key=lambda row: (-(row.left_us or 0.0), -row.step_us)))


def together(rows: Iterable[RooflineRow]) -> dict[tuple[str, str], RooflineRow]:
    """A mean call of each kernel, by name and component, whatever its roles.

    What a need is known of counts, as in a row of one role whose need is known in part. Bytes
    really read, role and limiter are those of the role with the most time.
    """
    groups: dict[tuple[str, str], list[RooflineRow]] = {}
    for row in rows:
        groups.setdefault((row.name, row.component), []).append(row)
    return {
        key: same_kernel[0] if len(same_kernel) == 1 else _mean(same_kernel)
        for key, same_kernel in groups.items()
    }


def _mean(rows: Sequence[RooflineRow]) -> RooflineRow:
    calls = sum(row.calls for row in rows)

    def total(name: str) -> float | None:
        values = [value for row in rows if (value := getattr(row, name)) is not None]
        return sum(values) if values else None

    def mean(name: str) -> float | None:
        values = [value * row.calls for row in rows if (value := getattr(row, name)) is not None]
        return sum(values) / calls if values else None

    names = ("needed_bytes", "streamed_bytes", "operations", "floor_us", "ahead_us")
    means: dict[str, Any] = {name: mean(name) for name in names}
    step_us = sum(row.step_us for row in rows)
    us, needed = step_us / calls if calls else 0.0, means["needed_bytes"]
    has_rate = bool(us) and not starts_early(us, means["ahead_us"])
    has_rate &= all(row.limiter != _EXCHANGE for row in rows)
    rate = needed / us * 1e6 if needed is not None and has_rate else None

    def share(name: str) -> float | None:
        ceilings = (
            row.bandwidth / of for row in rows if row.bandwidth and (of := getattr(row, name))
        )
        of = next(ceilings, None)
        return rate / of if rate is not None and of else None

    return replace(
        max(rows, key=lambda row: row.step_us),
        calls=calls,
        step_us=step_us,
        what=_joined(dict.fromkeys(row.what for row in rows if row.what)),
        product=next((row.product for row in rows if row.product), ""),
        weights=tuple(dict.fromkeys(name for row in rows for name in row.weights))[:_NAMED],
        basis=_joined(dict.fromkeys(row.basis for row in rows if row.basis)),
        expected=any(row.expected for row in rows),
        bandwidth=rate,
        of_data_sheet=share("of_data_sheet"),
        of_reached=share("of_reached"),
        nodes=sum(row.nodes for row in rows),
        node_us=total("node_us"),
        left_us=total("left_us"),
        left_ms_per_token=total("left_ms_per_token"),
        owner_basis=max((row.owner_basis for row in rows), key=BASES.index),
        **means,
    )


def _floor(
    needed: float | None,
    operations: float,
    peak: float | None,
    ceilings: Ceilings,
    smallest_us: float,
) -> tuple[float | None, str | None]:
    bandwidth = ceilings.bandwidth
    if needed is None or bandwidth is None:
        return None, None
    moving = needed / bandwidth.value * 1e6
    calculating = operations / peak * 1e6 if peak else 0.0
    if max(moving, calculating) < smallest_us:
        return max(moving, calculating), "latency"
    return (moving, "memory") if moving >= calculating else (calculating, "arithmetic")


def _joined(words: Mapping[str, None]) -> str:
    words_named = list(words)[:_NAMED]
    return ", ".join(words_named) + (" and others" if len(words) > _NAMED else "")

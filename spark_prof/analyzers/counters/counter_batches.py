"""Puts the counters of a rank together with its kernels and weights."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from spark_prof.analyzers.ceilings.config import Config
from spark_prof.analyzers.counters.folding import (
    MOST_SLOTS,
    RESOLVED,
    Calls,
    SlotEstimate,
    amounts_by_time,
    find_lag,
    overlaps,
)
from spark_prof.analyzers.lookup import combined
from spark_prof.arrays import Flags, Int64s


@dataclass(frozen=True)
class CounterRow:
    """All calls of one kernel that work for one component.

    A figure is None where it was not sampled or where the samples do not determine it.
    """

    name: str
    component: str
    calls: float  # calls in a step, or all calls where steps were not folded
    us: float  # time of one call, in microseconds
    read_bytes: float | None  # bytes that one call reads from DRAM
    read_error: float | None
    """Its standard error, with the part that comes from not knowing the course within a kernel."""
    write_bytes: float | None
    write_error: float | None
    bandwidth: float | None  # bytes read and written over the time of a call, in bytes a second
    tensor_active: float | None
    warps_active: float | None
    sm_active: float | None
    resolved: float  # share of its time in calls that the samples determine


@dataclass(frozen=True)
class WeightRow:
    """What the kernels of one component read in a step, against its weights."""

    component: str
    read_bytes: float
    read_error: float | None
    weight_bytes: float  # bytes of the weights that one step needs
    part: str
    """Which of the component's weights those are, such as "4 of 32 experts"; empty for all."""

    @property
    def ratio(self) -> float:
        """Bytes read over weight bytes."""
        return self.read_bytes / self.weight_bytes


@dataclass(frozen=True)
class CounterBatch:
    """Decode steps of one batch size, folded onto one another."""

    tokens: int  # scheduled tokens of a step
    steps: int  # steps that were sampled
    by_node: bool
    """Whether every node of the graph has an amount of its own; else all calls of a kernel for a
    component share one."""
    lag_us: float  # by how much the samples' clock was found to be late against the kernels'
    conserved: float  # bytes of the kernels and of idle time over bytes sampled
    idle_bytes_per_us: float | None
    rows: tuple[CounterRow, ...]
    weights: tuple[WeightRow, ...]


@dataclass(frozen=True)
class Counters:
    """Everything that the counters say about one rank."""

    interval_us: float
    samples: int
    sampled_us: float
    batches: tuple[CounterBatch, ...]
    long: tuple[CounterRow, ...]
    """Kernels of other steps, as far as they last so many samples that they need no folding."""
    notes: tuple[str, ...]  # what could not be said, and why


AMOUNTS = ("dram_read_bytes", "dram_write_bytes")
"""Columns of the `counters` table that count bytes."""

SHARES = ("tensor_active", "warps_active", "sm_active")  # columns that are a share of the interval
FEWEST_STEPS = 3  # with fewer steps the layers of a model are all there is to tell kernels apart by

_ENOUGH_STEPS = 16  # with fewer steps the calls of a kernel in all layers share one amount

_ENOUGH_RESOLVED = 0.95

_FAR_NS = 20_000
_LONGEST = 4
"""The first sample after a pause also holds what was counted during it, and so lasts as long."""


def counters_of(
    samples: pd.DataFrame,
    kernels: pd.DataFrame,
    steps: pd.DataFrame,
    layers: pd.DataFrame,
    config: Mapping[str, Any],
) -> Counters | None:
    """Amounts of every kernel in the decode steps that were sampled; None without samples."""
    samples = _in_order(samples)
    if samples.empty:
        return None
    begin, finish = (samples[name].to_numpy(np.int64) for name in ("start_ns", "end_ns"))
    sampled_steps = _sampled_steps(kernels, begin)
    decode = steps.loc[steps.index.isin(sampled_steps) & (steps["phase"] == "decode").to_numpy()]
    batches, notes = [], []
    folded = np.zeros(len(kernels), bool)
    for tokens, members in decode.groupby("decode_tokens").groups.items():
        size = int(str(tokens))
        if len(members) < FEWEST_STEPS:
            notes.append(
                f"Batches of {size} tokens: only {len(members)} steps were sampled, "
                f"{FEWEST_STEPS} are needed to tell kernels apart."
            )
            continue
        mine = kernels["step"].isin(members).to_numpy(bool)
        outcome = _batch(samples, kernels, mine, _needed_weights(layers, config, size), size)
        if isinstance(outcome, str):
            notes.append(f"Batches of {size} tokens: {outcome}")
        else:
            batches.append(outcome)
            folded |= mine
    if decode.empty:
        notes.append("No decode step was sampled.")
    return Counters(
        interval_us=float(np.median(finish - begin)) / 1e3,
        samples=len(samples),
        sampled_us=float((finish - begin).sum()) / 1e3,
        batches=tuple(sorted(batches, key=lambda batch: -batch.steps)),
        long=tuple(_long_rows(samples, kernels[~folded])),
        notes=tuple(notes),
    )


def _needed_weights(
    layers: pd.DataFrame, config: Mapping[str, Any], tokens: int
) -> dict[str, tuple[float, str]]:
    """Bytes that one step needs of each component's weights, and which part of them that is.

    Left out is the embedding, of which a step reads a row a token, and are experts where more than
    one token chooses among them: nobody recorded which the router chose.
    """
    sums = layers.groupby("component", observed=True)["bytes"].sum()
    needed = {str(name): (float(size), "") for name, size in sums.items() if name and size}
    needed.pop("embedding", None)
    whole, _ = needed.pop("experts", (0.0, ""))
    read = Config(config)
    experts, chosen = read.experts, read.experts_per_token
    if whole and tokens == 1 and experts and chosen:
        needed["experts"] = (whole * chosen / experts, f"{chosen} of {experts} experts")
    return needed


def _in_order(samples: pd.DataFrame) -> pd.DataFrame:
    """The samples by time, without those that would count twice or span a pause of the sampling."""
    length = samples["end_ns"] - samples["start_ns"]
    usual = length.median() if len(samples) else 0
    samples = samples[(length > 0) & (length <= _LONGEST * usual)]
    samples = samples.sort_values("start_ns", kind="stable")
    begin, finish = (samples[name].to_numpy(np.int64) for name in ("start_ns", "end_ns"))
    before = np.append(np.iinfo(np.int64).min, np.maximum.accumulate(finish)[:-1])
    return samples[begin >= before[: len(begin)]]


def _batch(
    samples: pd.DataFrame,
    kernels: pd.DataFrame,
    mine: Flags,
    weights: Mapping[str, tuple[float, str]],
    tokens: int,
) -> CounterBatch | str:
    """The counters of one batch size; a sentence where its kernels cannot be told apart."""
    near = _near(samples, kernels[mine], kernels[~mine])
    begin, finish = (near[name].to_numpy(np.int64) for name in ("start_ns", "end_ns"))
    length = (finish - begin).astype(np.float64)
    quantities = {name: near[name].to_numpy(np.float64) for name in AMOUNTS}
    quantities |= {name: near[name].to_numpy(np.float64) * length for name in SHARES}
    quantities = {name: q for name, q in quantities.items() if len(q) and np.isfinite(q).all()}
    if not quantities:
        return "no counter was sampled throughout."
    main = next(iter(quantities))
    # Few unknowns: with one for each node, a few steps fit the samples at any lag.
    calls, slots = _slotted(kernels[mine], nodes=False)
    lag = find_lag(begin, finish, quantities[main], calls, len(slots))
    steps = int(kernels["step"][mine].nunique())
    estimate = None
    if steps >= _ENOUGH_STEPS:
        fine, nodes = _slotted(kernels[mine], nodes=True)
        if len(nodes) <= MOST_SLOTS:
            estimate = SlotEstimate(begin, finish, quantities, fine.shifted(lag), nodes)
    by_node = estimate is not None and estimate.resolved_share() >= _ENOUGH_RESOLVED
    if estimate is None or not by_node:
        estimate = SlotEstimate(begin, finish, quantities, calls.shifted(lag), slots)
    read = estimate.parts.get(AMOUNTS[0])
    return CounterBatch(
        tokens=tokens,
        steps=steps,
        by_node=by_node,
        lag_us=lag / 1e3,
        conserved=estimate.parts[main].conserved,
        idle_bytes_per_us=read.idle_rate * 1e3 if read else None,
        rows=tuple(_folded_rows(estimate)),
        weights=tuple(_weight_rows(estimate, weights)),
    )


def _near(samples: pd.DataFrame, mine: pd.DataFrame, other_kernels: pd.DataFrame) -> pd.DataFrame:
    """The samples in or near those kernels in which none of the others ran."""
    begin, finish = (samples[name].to_numpy(np.int64) for name in ("start_ns", "end_ns"))
    keep = np.zeros(len(samples), bool)
    for frame, margin in ((mine, _FAR_NS), (other_kernels, 0)):
        start, end = (frame[name].to_numpy(np.int64) for name in ("start_ns", "end_ns"))
        keep[overlaps(begin, finish, start - margin, end + margin)[0]] = frame is mine
    return samples[keep]


def _sampled_steps(kernels: pd.DataFrame, begin: Int64s) -> Int64s:
    """The steps during whose kernels a sample began."""
    spans = kernels[kernels["step"] >= 0].groupby("step").agg({"start_ns": "min", "end_ns": "max"})
    first = np.searchsorted(begin, spans["start_ns"])
    last = np.searchsorted(begin, spans["end_ns"])
    numbers: Int64s = spans.index[last > first].to_numpy(np.int64)
    return numbers


def _slotted(kernels: pd.DataFrame, *, nodes: bool) -> tuple[Calls, pd.DataFrame]:
    """The calls with their slots, and what each slot is, as `Estimate` has it.

    With nodes a slot is a graph node and name, and which of those it is in its step, and a replay
    is a step; else a slot is all calls of a name for a component, and a replay a layer of a step.
    """
    ordered = kernels.sort_values(["step", "start_ns"], kind="stable")
    slot, _ = combined(*(ordered[key] for key in (*_KERNEL, *(["graph_node"] if nodes else []))))
    if nodes:
        turn = ordered.groupby([ordered["step"], slot], sort=False).cumcount()
        slot, _ = combined(slot, turn)
    replay, _ = combined(ordered["step"], *([] if nodes else [ordered["layer"]]))
    start, end = (ordered[name].to_numpy(np.int64) for name in ("start_ns", "end_ns"))
    rows = ordered.assign(slot=slot, us=(end - start) / 1e3).groupby("slot", sort=True)
    slots = rows.agg(
        name=("name", "first"), component=("component", "first"),
        us=("us", "mean"), count=("us", "size"),
    )  # fmt: skip
    steps = max(ordered["step"].nunique(), 1)
    return Calls(start, end, slot, replay), slots.assign(count=slots["count"] / steps)


_WORST_ERROR = 0.5
_LEAST = 0.01
"""A component with a smaller share of the weights is not held against them: the rest outweighs."""

_KERNEL = ["name", "component"]
_Amounts = Mapping[str, tuple[float, float | None] | None]


def _folded_rows(estimate: SlotEstimate) -> list[CounterRow]:
    rows = []
    for (name, component), slots in estimate.slots.groupby(_KERNEL, observed=True, sort=False):
        index, calls = slots.index.to_numpy(), float(slots["count"].sum())
        weights = np.zeros(len(estimate.slots))
        weights[index] = slots["count"] / calls
        resolved = estimate.resolved_share(index)
        amounts: _Amounts = {
            key: estimate.of(key, weights) if resolved >= RESOLVED else None
            for key in (*AMOUNTS, *SHARES)
        }
        us = float((slots["us"] * slots["count"]).sum()) / calls
        rows.append(_row(name, component, calls, us, resolved, amounts))
    return sorted(rows, key=lambda row: -row.us * row.calls)


def _long_rows(samples: pd.DataFrame, kernels: pd.DataFrame) -> Iterator[CounterRow]:
    """Kernels that last so many samples that they need no folding."""
    begin, finish = (samples[name].to_numpy(np.int64) for name in ("start_ns", "end_ns"))
    start, end = (kernels[name].to_numpy(np.int64) for name in ("start_ns", "end_ns"))
    table = kernels[_KERNEL].assign(us=(end - start) / 1e3)
    every = [*AMOUNTS, *SHARES]
    for key in every:
        scale = finish - begin if key in SHARES else 1.0
        sampled = samples[key].to_numpy(np.float64) * scale
        table[key] = amounts_by_time(begin, finish, sampled, start, end)
    table = table[table[every].notna().any(axis=1)]
    for (name, component), rows in table.groupby(_KERNEL, observed=True, sort=False):
        mean, error, whole = rows[every].mean(), rows[every].sem(), rows[every].notna().all()
        amounts: _Amounts = {
            key: (float(mean[key]), float(error[key]) if len(rows) > 1 else None)
            if whole[key]
            else None
            for key in every
        }
        yield _row(name, component, float(len(rows)), float(rows["us"].mean()), 1.0, amounts)


def _weight_rows(
    estimate: SlotEstimate, needed: Mapping[str, tuple[float, str]]
) -> Iterator[WeightRow]:
    """What each component's kernels read in a step, against the weights that it needs."""
    total = sum(size for size, _ in needed.values())
    for component, (size, part) in sorted(needed.items(), key=lambda item: -item[1][0]):
        mine = (estimate.slots["component"] == component).to_numpy()
        if size < _LEAST * total or not mine.any() or estimate.resolved_share(mine) < RESOLVED:
            continue
        read = estimate.of(AMOUNTS[0], np.where(mine, estimate.slots["count"], 0.0))
        if read is not None and read[1] < _WORST_ERROR * max(read[0], size):
            yield WeightRow(component, read[0], read[1], size, part)


def _row(
    name: object, component: object, calls: float, us: float, resolved: float, amounts: _Amounts
) -> CounterRow:
    (read, read_error), (write, write_error) = (amounts[key] or (None, None) for key in AMOUNTS)
    tensor, warps, sm = (
        min(active[0] / (us * 1e3), 1.0) if (active := amounts[key]) and us else None
        for key in SHARES
    )
    return CounterRow(
        name=str(name),
        component=str(component),
        calls=calls,
        us=us,
        read_bytes=read,
        read_error=read_error,
        write_bytes=write,
        write_error=write_error,
        bandwidth=(read + write) / us * 1e6
        if read is not None and write is not None and us
        else None,
        tensor_active=tensor,
        warps_active=warps,
        sm_active=sm,
        resolved=resolved,
    )

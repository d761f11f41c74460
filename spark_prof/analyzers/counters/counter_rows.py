"""Turns amounts into the rows of a report."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from spark_prof.analyzers.counters.counter_slots import RESOLVED, Estimate
from spark_prof.analyzers.counters.folding import overlaps


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

SHARES = ("tensor_active", "warps_active", "sm_active")
"""Columns that are a share of the interval."""

_WORST_ERROR = 0.5
_LEAST = 0.01
"""A component with a smaller share of the weights is not held against them: the rest outweighs."""


def folded_rows(estimate: Estimate) -> list[CounterRow]:
    """One row a kernel and component, the most expensive first."""
    slots = estimate.slots
    rows = []
    kind = slots.groupby(["name", "component"], observed=True, sort=False).ngroup().to_numpy()
    for number in range(int(kind.max(initial=-1)) + 1):
        index = np.flatnonzero(kind == number)
        count = slots["count"].to_numpy()[index]
        per_step = float(count.sum())
        weights = np.zeros(len(slots))
        weights[index] = count / per_step
        time = slots["us"].to_numpy()[index] * count
        resolved = float(time[estimate.resolved[index] >= RESOLVED].sum() / max(time.sum(), 1e-9))
        known = {
            name: estimate.of(name, weights) if resolved >= RESOLVED else None
            for name in (*AMOUNTS, *SHARES)
        }
        rows.append(
            _row(
                slots["name"].iloc[index[0]],
                slots["component"].iloc[index[0]],
                per_step,
                float(time.sum()) / per_step,
                resolved,
                {name: value[0] if value else None for name, value in known.items()},
                {name: value[1] if value else None for name, value in known.items()},
            )
        )
    return sorted(rows, key=lambda row: -row.us * row.calls)


def long_rows(samples: pd.DataFrame, kernels: pd.DataFrame) -> Iterator[CounterRow]:
    """Kernels that last so many samples that they need no folding."""
    begin, finish = (samples[name].to_numpy(np.int64) for name in ("start_ns", "end_ns"))
    start, end = (kernels[name].to_numpy(np.int64) for name in ("start_ns", "end_ns"))
    found = kernels[["name", "component"]].assign(us=(end - start) / 1e3)
    for name in (*AMOUNTS, *SHARES):
        scale = finish - begin if name in SHARES else 1.0
        sampled = samples[name].to_numpy(np.float64) * scale
        found[name] = amounts_by_time(begin, finish, sampled, start, end)
    found = found[found[[*AMOUNTS, *SHARES]].notna().any(axis=1)]
    for _, rows in found.groupby(["name", "component"], observed=True, sort=False):
        values = {name: rows[name].to_numpy(np.float64) for name in (*AMOUNTS, *SHARES)}
        mean = {name: float(of.mean()) for name, of in values.items()}
        error = {name: _standard_error(values[name]) for name in AMOUNTS}
        yield _row(
            rows["name"].iloc[0],
            rows["component"].iloc[0],
            float(len(rows)),
            float(rows["us"].mean()),
            1.0,
            {name: value if np.isfinite(value) else None for name, value in mean.items()},
            error,
        )


def weight_rows(estimate: Estimate, needed: Mapping[str, tuple[float, str]]) -> Iterator[WeightRow]:
    """What each component's kernels read in a step, against the weights that it needs."""
    slots = estimate.slots
    count = slots["count"].to_numpy()
    time = slots["us"].to_numpy() * count
    total = sum(size for size, _ in needed.values())
    for component, (size, part) in sorted(needed.items(), key=lambda item: -item[1][0]):
        mine = (slots["component"] == component).to_numpy()
        if size < _LEAST * total or not mine.any():
            continue
        resolved = time[mine & (estimate.resolved >= RESOLVED)].sum()
        if resolved < RESOLVED * time[mine].sum():
            continue
        read = estimate.of("dram_read_bytes", np.where(mine, count, 0.0))
        if read is None or not read[1] < _WORST_ERROR * max(read[0], size):
            continue
        yield WeightRow(component, read[0], read[1], size, part)


def _standard_error(values: npt.NDArray[np.float64]) -> float | None:
    """Of the mean of some values; None of one value, or where some are missing."""
    if len(values) < 2 or not np.isfinite(values).all():
        return None
    return float(values.std(ddof=1) / np.sqrt(len(values)))


def _row(
    name: object,
    component: object,
    calls: float,
    us: float,
    resolved: float,
    amounts: Mapping[str, float | None],
    errors: Mapping[str, float | None],
) -> CounterRow:
    read, write = (amounts[key] for key in AMOUNTS)
    moved = None if read is None or write is None else read + write
    tensor, warps, sm = (
        None if (done := amounts[key]) is None or not us else min(done / (us * 1e3), 1.0)
        for key in SHARES
    )
    return CounterRow(
        name=str(name),
        component=str(component),
        calls=calls,
        us=us,
        read_bytes=read,
        read_error=errors[AMOUNTS[0]],
        write_bytes=write,
        write_error=errors[AMOUNTS[1]],
        bandwidth=moved / us * 1e6 if moved is not None and us else None,
        tensor_active=tensor,
        warps_active=warps,
        sm_active=sm,
        resolved=resolved,
    )


LONG = 10
"""A kernel that lasts so many samples loses or gains at most a tenth at its two ends."""


def amounts_by_time(
    begin: npt.NDArray[np.int64],
    finish: npt.NDArray[np.int64],
    sampled: npt.NDArray[np.float64],
    start: npt.NDArray[np.int64],
    end: npt.NDArray[np.int64],
) -> npt.NDArray[np.float64]:
    """The samples' amounts, divided among the kernels in proportion to the time in each sample.

    NaN for a kernel that lasts fewer than LONG samples, or that the samples do not cover.
    """
    if not len(begin):
        return np.full(len(start), np.nan)
    pairs = overlaps(begin, finish, start, end)
    busy = np.bincount(pairs.sample, weights=pairs.ns, minlength=len(begin))
    # At a kernel's ends a sample also holds idle time, which is taken to move nothing.
    part = sampled[pairs.sample] * pairs.ns / np.maximum(busy[pairs.sample], 1)
    amount = np.bincount(pairs.kernel, weights=part, minlength=len(start))
    covered = np.bincount(pairs.kernel, weights=pairs.ns, minlength=len(start))
    duration = end - start
    long = duration >= LONG * np.median(finish - begin)
    found: npt.NDArray[np.float64] = np.where(long & (covered == duration), amount, np.nan)
    return found

"""Puts the counters of a rank together with its kernels and weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from spark_prof.analyzers.counters.folding import MOST_SLOTS, Folded, fold
from spark_prof.analyzers.counters.lag import find_lag
from spark_prof.analyzers.counters.model import CounterBatch, CounterRow, Counters, WeightRow
from spark_prof.analyzers.counters.overlap import overlaps
from spark_prof.analyzers.counters.slots import in_parts, sampled_steps, slotted
from spark_prof.analyzers.counters.weights import needed_weights

__all__ = ["FEWEST_STEPS", "counters_of"]

FEWEST_STEPS = 8
"""Fewer replays than this leave too few phases of the sampling to tell neighbours apart."""

_RESOLVED = 0.9
_WORST_ERROR = 0.5
_AMOUNTS = ("dram_read_bytes", "dram_write_bytes")
_SHARES = ("tensor_active", "warps_active", "sm_active")
_FAR_NS = 20_000
_LEAST_TIME = 0.001
"""A component whose kernels take less than this share of a step is not held against weights."""

Floats = npt.NDArray[np.float64]


def counters_of(
    samples: pd.DataFrame,
    kernels: pd.DataFrame,
    steps: pd.DataFrame,
    layers: pd.DataFrame,
    config: Mapping[str, Any],
) -> Counters | None:
    """Amounts of every kernel in the decode steps that were sampled; None without samples.

    Args:
        samples: the `counters` table of a rank.
        kernels: name, kind, component, start_ns, end_ns, step and graph_node.
        steps: phase, decode_tokens, prefill_tokens, indexed by step.
        layers: the `layers` table.
        config: the model's configuration.
    """
    if samples.empty:
        return None
    samples = samples.sort_values("start_ns")
    begin, finish = (samples[name].to_numpy(np.int64) for name in ("start_ns", "end_ns"))
    # A sample that was written twice or reaches into the next one would count twice.
    apart = np.append(begin[1:] >= finish[:-1], True) & (finish > begin)
    samples, begin, finish = samples[apart], begin[apart], finish[apart]
    seen = pd.Index(sampled_steps(kernels, begin))
    decode = steps.loc[steps.index.isin(seen) & (steps["phase"] == "decode")]
    batches, notes = [], []
    for tokens, members in decode.groupby("decode_tokens").groups.items():
        size = int(str(tokens))
        if len(members) < FEWEST_STEPS:
            notes.append(
                f"Batches of {size} tokens: only {len(members)} steps were sampled, "
                f"{FEWEST_STEPS} are needed to tell kernels apart."
            )
            continue
        mine = kernels["step"].isin(members).to_numpy()
        found = _batch(samples, kernels, mine, needed_weights(layers, config, size), size)
        if isinstance(found, str):
            notes.append(f"Batches of {size} tokens: {found}")
        else:
            batches.append(found)
    if decode.empty:
        notes.append("No decode step was sampled.")
    return Counters(
        interval_us=float(np.median(finish - begin)) / 1e3,
        samples=len(samples),
        sampled_us=float((finish - begin).sum()) / 1e3,
        batches=tuple(sorted(batches, key=lambda batch: -batch.steps)),
        notes=tuple(notes),
    )


def _batch(
    samples: pd.DataFrame,
    kernels: pd.DataFrame,
    mine: npt.NDArray[np.bool_],
    weights: Mapping[str, tuple[float, str]],
    tokens: int,
) -> CounterBatch | str:
    """One batch size; a sentence where its kernels cannot be told apart."""
    group = slotted(kernels[mine])
    if len(group.slots) > MOST_SLOTS:
        return f"{len(group.slots)} different kernels a step are too many to tell apart."
    near = _near(samples, kernels[mine], kernels[~mine])
    begin, finish = (near[name].to_numpy(np.int64) for name in ("start_ns", "end_ns"))
    length = (finish - begin).astype(np.float64)
    quantities = {name: near[name].to_numpy(np.float64) for name in _AMOUNTS}
    quantities |= {name: near[name].to_numpy(np.float64) * length for name in _SHARES}
    quantities = {name: q for name, q in quantities.items() if len(q) and np.isfinite(q).all()}
    if not quantities:
        return "the counters were not sampled throughout."
    first = next(iter(quantities.values()))
    lag = find_lag(begin, finish, first, group.calls, len(group.slots))
    calls = group.calls.shifted(lag)
    cut, owner = in_parts(calls, group.slots, float(np.median(length)), MOST_SLOTS)
    whole = {n: fold(begin, finish, q, calls, len(group.slots)) for n, q in quantities.items()}
    parts = {n: fold(begin, finish, q, cut, len(owner)) for n, q in quantities.items()}
    one = next(iter(parts))
    steps = int(np.unique(calls.step).size)
    estimate = _Estimate(whole, parts, owner, group.slots)
    return CounterBatch(
        tokens=tokens,
        steps=steps,
        lag_us=lag / 1e3,
        conserved=parts[one].conserved,
        idle_bytes_per_us=parts[one].idle_rate * 1e3 if one in _AMOUNTS else 0.0,
        rows=tuple(_rows(estimate)),
        weights=tuple(_against_weights(estimate, weights)),
    )


def _near(samples: pd.DataFrame, mine: pd.DataFrame, others: pd.DataFrame) -> pd.DataFrame:
    """The samples in or near those kernels in which none of the others ran."""
    begin, finish = (samples[name].to_numpy(np.int64) for name in ("start_ns", "end_ns"))
    keep = np.zeros(len(samples), bool)
    for frame, value in ((mine, True), (others, False)):
        start, end = (frame[name].to_numpy(np.int64) for name in ("start_ns", "end_ns"))
        margin = _FAR_NS if value else 0
        keep[overlaps(begin, finish, start - margin, end + margin).sample] = value
    return samples[keep]


class _Estimate:
    """Amounts per call of sets of slots, with their errors."""

    def __init__(
        self,
        whole: Mapping[str, Folded],
        parts: Mapping[str, Folded],
        owner: npt.NDArray[np.int64],
        slots: pd.DataFrame,
    ) -> None:
        self._whole, self._parts, self._owner, self.slots = whole, parts, owner, slots
        any_part = next(iter(parts.values()))
        resolved = np.full(len(slots), np.inf)
        np.minimum.at(resolved, owner, any_part.resolved)
        self.resolved = resolved

    def of(self, name: str, weights: Floats) -> tuple[float, float] | None:
        """The weighted sum over slots and its standard error; None where it was not sampled."""
        if name not in self._parts:
            return None
        of_part = weights[self._owner]
        amount = float(of_part @ self._parts[name].amount)
        # What a constant course within each kernel would give instead shows how much hangs on it.
        otherwise = float(weights @ self._whole[name].amount)
        return amount, float(np.hypot(self._parts[name].error(of_part), amount - otherwise))


def _rows(estimate: _Estimate) -> list[CounterRow]:
    slots = estimate.slots
    rows = []
    kind = slots.groupby(["name", "component"], observed=True, sort=False).ngroup().to_numpy()
    for number in range(int(kind.max(initial=-1)) + 1):
        index = np.flatnonzero(kind == number)
        name, component = slots["name"].iloc[index[0]], slots["component"].iloc[index[0]]
        weights = np.zeros(len(slots))
        count = slots["count"].to_numpy()[index]
        per_step = float(count.sum())
        weights[index] = count / per_step
        time = slots["us"].to_numpy()[index] * count
        us = float(time.sum()) / per_step
        resolved = float(time[estimate.resolved[index] >= _RESOLVED].sum() / max(time.sum(), 1e-9))
        known = {n: estimate.of(n, weights) for n in (*_AMOUNTS, *_SHARES)}
        if resolved < _RESOLVED:
            known = dict.fromkeys(known)
        read, write = (known[n] for n in _AMOUNTS)
        moved = read[0] + write[0] if read and write else None
        shares = {
            n: min(v[0] / (us * 1e3), 1.0) if (v := known[n]) and us else None for n in _SHARES
        }
        rows.append(
            CounterRow(
                name=str(name),
                component=str(component),
                calls_per_step=per_step,
                us=us,
                read_bytes=read[0] if read else None,
                read_error=read[1] if read else None,
                write_bytes=write[0] if write else None,
                write_error=write[1] if write else None,
                bandwidth=moved / us * 1e6 if moved is not None and us else None,
                resolved=resolved,
                **shares,
            )
        )
    return sorted(rows, key=lambda row: -row.us * row.calls_per_step)


def _against_weights(
    estimate: _Estimate, needed: Mapping[str, tuple[float, str]]
) -> list[WeightRow]:
    slots = estimate.slots
    total = float((slots["us"] * slots["count"]).sum())
    rows = []
    for component, (size, part) in needed.items():
        mine = (slots["component"] == component).to_numpy()
        spent = float((slots["us"] * slots["count"])[mine].sum())
        if spent < _LEAST_TIME * total or estimate.resolved[mine].min() < _RESOLVED:
            continue
        read = estimate.of("dram_read_bytes", np.where(mine, slots["count"].to_numpy(), 0.0))
        if read is None or not read[1] < _WORST_ERROR * max(read[0], size):
            continue
        rows.append(WeightRow(component, read[0], read[1], size, part))
    return sorted(rows, key=lambda row: -row.weight_bytes)

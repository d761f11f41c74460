"""Puts the counters of a rank together with its kernels and weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from spark_prof.analyzers.ceilings.config import Config
from spark_prof.analyzers.counters.counter_rows import (
    AMOUNTS,
    SHARES,
    CounterBatch,
    Counters,
    folded_rows,
    long_rows,
    weight_rows,
)
from spark_prof.analyzers.counters.counter_slots import Estimate, sampled_steps, slotted
from spark_prof.analyzers.counters.folding import MOST_SLOTS, find_lag, overlaps

FEWEST_STEPS = 3
"""With fewer steps the layers of a model are all there is to tell kernels apart by."""

_ENOUGH_STEPS = 16
"""With fewer steps the calls of a kernel in all layers share one amount."""

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
    """Amounts of every kernel in the decode steps that were sampled; None without samples.

    Args:
        kernels: name, component, start_ns, end_ns, step and graph_node.
        steps: phase and decode_tokens, indexed by step.
    """
    samples = _in_order(samples)
    if samples.empty:
        return None
    begin, finish = (samples[name].to_numpy(np.int64) for name in ("start_ns", "end_ns"))
    seen = sampled_steps(kernels, begin)
    decode = steps.loc[steps.index.isin(seen) & (steps["phase"] == "decode").to_numpy()]
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
        found = _batch(samples, kernels, mine, _needed_weights(layers, config, size), size)
        if isinstance(found, str):
            notes.append(f"Batches of {size} tokens: {found}")
        else:
            batches.append(found)
            folded |= mine
    if decode.empty:
        notes.append("No decode step was sampled.")
    return Counters(
        interval_us=float(np.median(finish - begin)) / 1e3,
        samples=len(samples),
        sampled_us=float((finish - begin).sum()) / 1e3,
        batches=tuple(sorted(batches, key=lambda batch: -batch.steps)),
        long=tuple(long_rows(samples, kernels[~folded])),
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
    read = Config.of(config)
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
    mine: npt.NDArray[np.bool_],
    weights: Mapping[str, tuple[float, str]],
    tokens: int,
) -> CounterBatch | str:
    """One batch size; a sentence where its kernels cannot be told apart."""
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
    coarse = slotted(kernels[mine], nodes=False)
    lag = find_lag(begin, finish, quantities[main], coarse.calls, len(coarse.slots))
    steps = int(kernels["step"][mine].nunique())
    estimate = None
    if steps >= _ENOUGH_STEPS:
        fine = slotted(kernels[mine], nodes=True)
        if len(fine.slots) <= MOST_SLOTS:
            estimate = Estimate(begin, finish, quantities, fine.calls.shifted(lag), fine.slots)
    by_node = estimate is not None and estimate.resolved_share >= _ENOUGH_RESOLVED
    if estimate is None or not by_node:
        estimate = Estimate(begin, finish, quantities, coarse.calls.shifted(lag), coarse.slots)
    whole = estimate.folded(main)
    read = estimate.folded(AMOUNTS[0])
    return CounterBatch(
        tokens=tokens,
        steps=steps,
        by_node=by_node,
        lag_us=lag / 1e3,
        conserved=whole.conserved if whole else float("nan"),
        idle_bytes_per_us=read.idle_rate * 1e3 if read else None,
        rows=tuple(folded_rows(estimate)),
        weights=tuple(weight_rows(estimate, weights)),
    )


def _near(samples: pd.DataFrame, mine: pd.DataFrame, others: pd.DataFrame) -> pd.DataFrame:
    """The samples in or near those kernels in which none of the others ran."""
    begin, finish = (samples[name].to_numpy(np.int64) for name in ("start_ns", "end_ns"))
    keep = np.zeros(len(samples), bool)
    for frame, margin in ((mine, _FAR_NS), (others, 0)):
        start, end = (frame[name].to_numpy(np.int64) for name in ("start_ns", "end_ns"))
        keep[overlaps(begin, finish, start - margin, end + margin).sample] = frame is mine
    return samples[keep]

"""Sums up the requests of all schedulers of a recording."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pandas as pd

from spark_prof.analyzers.lookup import mapping_in
from spark_prof.analyzers.requests.request_times import (
    ABORTED,
    CUT,
    FAILED,
    PARTS,
    TOKENLESS,
    WHOLE,
    FirstTokenPart,
    LimitRow,
    Percentiles,
    RequestSummary,
    request_times,
    schedulers_of,
    token_gaps,
)
from spark_prof.traces.bundle import Bundle
from spark_prof.vocabulary import LIMITS

_BAND = 0.05  # of the requests, on each side of a percentile, whose parts stand for it


def served_of(bundle: Bundle, rank: int | None = None) -> RequestSummary | None:
    """The requests of a recording; None where it has none, as an older one or an import.

    Args:
        rank: a worker on the scheduler's host, whose steps tell when tokens were sampled.
    """
    numbers = schedulers_of(bundle)
    # Which replica a worker belongs to is not known here: of several none is asked.
    worker = rank if len(numbers) == 1 else None
    frames = [request_times(bundle, number, worker) for number in numbers]
    if not any(map(len, frames)):
        return None
    requests = pd.concat(frames, ignore_index=True)
    whole = requests[requests["state"] == WHOLE]
    gaps = [
        token_gaps(bundle, number, frame[frame["state"] == WHOLE])
        for number, frame in zip(numbers, frames, strict=True)
    ]
    states = Counter(requests["state"].tolist())
    placed = requests[requests["scheduled_ns"] > 0]
    cached = placed["cached_tokens"].to_numpy(np.int64)
    return RequestSummary(
        requests=len(requests),
        whole=len(whole),
        aborted=states[ABORTED],
        failed=states[FAILED],
        cut=states[CUT],
        tokenless=states[TOKENLESS],
        prompt_tokens=int(placed["prompt_tokens"].sum()),
        cached_tokens=int(cached.sum()) if len(cached) and (cached >= 0).all() else None,
        output_tokens=int(requests["output_tokens"].sum()),
        preemptions=int(requests["preemptions"].sum()),
        ttft=_percentiles(whole["ttft_us"].to_numpy()),
        parts=_parts(whole),
        tpot=_percentiles(whole["tpot_us"].dropna().to_numpy()),
        itl=_percentiles(np.concatenate(gaps)),
        **_load(bundle, numbers),
    )


def _percentiles(us: np.ndarray) -> Percentiles | None:
    if not len(us):
        return None
    p50, p90, p99 = map(float, np.percentile(us, (50, 90, 99)))
    return Percentiles(len(us), float(us.mean()), p50, p90, p99)


def _parts(whole: pd.DataFrame) -> tuple[FirstTokenPart, ...]:
    """The parts of the first token's time; at a percentile those of the requests around it."""
    if whole.empty:
        return ()
    rows = whole.sort_values("ttft_us", kind="stable")
    ttft = rows["ttft_us"].to_numpy()
    parts = np.array([rows[f"{name}_us"].to_numpy() for name in PARTS])
    at = [_around(ttft, parts, percentile) for percentile in (50, 90, 99)]
    figures = [parts.mean(axis=1), *at]
    return tuple(
        FirstTokenPart(name, *(float(figure[number]) for figure in figures))
        for number, name in enumerate(PARTS)
        if any(figure[number] > 0 for figure in figures)
    )


def _around(ttft: np.ndarray, parts: np.ndarray, percentile: int) -> np.ndarray:
    """The parts of the percentile, in the proportions of the requests around it."""
    place = percentile / 100 * (len(ttft) - 1)
    reach = max(_BAND * (len(ttft) - 1), 0.5)
    low, high = int(np.ceil(place - reach)), int(np.floor(place + reach))
    band = parts[:, max(low, 0) : high + 1].sum(axis=1)
    whole = band.sum()
    return np.asarray(band * (float(np.percentile(ttft, percentile)) / whole if whole else 0.0))


def _load(bundle: Bundle, numbers: Sequence[int]) -> dict[str, Any]:
    """What the schedulers' batches say of their load, and their limits."""
    columns = ["limit", "running", "waiting", "free_blocks"]
    engines, used = [], []
    facts: list[dict[str, object]] = []
    for number in numbers:
        engine = bundle.frame("engine", number, columns)
        engines.append(engine.assign(limit=engine["limit"].astype(str)))
        limits_of = dict(mapping_in(bundle.meta.facts.get(f"engine{number}", {}), "scheduler"))
        facts.append(limits_of)
        free, blocks = engine["free_blocks"].to_numpy(np.float64), limits_of.get("kv_blocks")
        if type(blocks) is int and blocks > 0:
            used.append(np.clip(1 - free[free >= 0] / blocks, 0.0, 1.0))
    rows = pd.concat(engines, ignore_index=True)
    limits = Counter(limit for limit in rows["limit"].tolist() if limit and limit in LIMITS)
    whole = sum(limits.values())
    load: dict[str, Any] = {
        "limits": tuple(
            LimitRow(name, batches, batches / whole)
            for name, batches in sorted(limits.items(), key=lambda item: (-item[1], item[0]))
        )
    }
    for name in ("running", "waiting"):
        counts = rows[name].to_numpy(np.int64)
        counts = counts[counts >= 0]
        if len(counts):
            load |= {name: float(counts.mean()), f"most_{name}": int(counts.max())}
    if used and sum(map(len, used)):
        shares = np.concatenate(used)
        load |= {"kv_used": float(shares.mean()), "kv_most_used": float(shares.max())}
    for name in ("kv_blocks", "max_num_seqs", "max_num_batched_tokens"):
        load[name] = _same(fact.get(name) for fact in facts)
    caching = {fact.get("prefix_caching") for fact in facts}
    load["prefix_caching"] = caching.pop() if caching in ({True}, {False}) else None
    return load


def _same(values: Iterable[object]) -> int | None:
    """A number that all have; None where they differ or one has none."""
    distinct = set(values)
    value = distinct.pop() if len(distinct) == 1 else None
    return value if type(value) is int and value > 0 else None

"""What kernels really read from memory, by hardware counters."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd

from spark_prof.analyzers.classify.classifier import spelling
from spark_prof.analyzers.counters.counter_rows import Counters
from spark_prof.analyzers.roofline.model import Place

_METRIC = "dram__bytes_read.sum"
_UNITS = {"": 1.0, "byte": 1.0, "kbyte": 1e3, "mbyte": 1e6, "gbyte": 1e9}
"""Nsight Compute's units are decimal."""


@dataclass(frozen=True)
class Moved:
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

    Args:
        counters: what the sampled counters say.
        streamed: by tokens of a step, what each kernel has to stream in it.
        places: of all kernels of these steps.
    """
    roles: dict[tuple[str, str], list[Place]] = {}
    for place in places:
        roles.setdefault((place.component, place.name), []).append(place)
    for batch in counters.batches if counters else ():
        if batch.tokens not in streamed:
            continue
        needed = streamed[batch.tokens]
        return {
            place: Moved(row.read_bytes, needed.get(place, 0.0) / row.calls, "PM sampling")
            for row in batch.rows
            if row.read_bytes is not None and row.calls
            for place in _only(roles.get((row.component, row.name), []))
        }
    return {}


def by_single_kernels(metrics: pd.DataFrame, needed: Mapping[Place, float]) -> dict[Place, Moved]:
    """What kernels read, from those that Nsight Compute measured alone.

    A kernel that has several components or roles is left out: which of its calls was measured is
    not known.

    Args:
        metrics: the `metrics` table.
        needed: what one call has to stream.
    """
    rows = metrics[(metrics["metric"] == _METRIC).to_numpy()]
    read: dict[str, list[float]] = {}
    for name, value, unit in zip(rows["name"], rows["value"], rows["unit"], strict=True):
        scale = _UNITS.get(str(unit).lower())
        if scale is not None and np.isfinite(value) and value >= 0:
            read.setdefault(spelling(str(name)), []).append(float(value) * scale)
    places: dict[str, list[Place]] = {}
    for place in needed:
        places.setdefault(spelling(place.name), []).append(place)
    return {
        place: Moved(float(np.mean(values)), needed[place], "Nsight Compute")
        for spelt, values in read.items()
        for place in _only(places.get(spelt, []))
    }


def _only(places: list[Place]) -> list[Place]:
    return places if len(places) == 1 else []

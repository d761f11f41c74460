"""Which steps of two recordings are compared: those of the same size, weighted as on side a."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

__all__ = ["SIZES", "Group", "groups_of", "like_groups"]

Int64s = npt.NDArray[np.int64]

SIZES = {"decode": "decode_requests", "prefill": "prefill_tokens", "unknown": ""}
"""The column that says how large a step of each phase is; steps of unknown phase have no size."""

_MOST_SIZES = 16


@dataclass(frozen=True, eq=False)
class Group:
    """Steps of one size.

    Attributes:
        size: requests that decode, or prompt tokens; 0 where nothing tells.
        a: places of side a's steps, in order; empty where it has none.
        b: the same of side b.
        weight: their share in the comparison, 0 where one side has none.
    """

    size: int
    a: Int64s
    b: Int64s
    weight: float


def groups_of(steps: pd.DataFrame, phase: str) -> dict[int, Int64s]:
    """The steps of a phase by their size, as places in order."""
    places = np.flatnonzero(steps["phase"].astype(str).to_numpy() == phase)
    if not SIZES[phase]:
        return {0: places} if len(places) else {}
    size = steps[SIZES[phase]].to_numpy(np.int64)[places]
    return {int(each): places[size == each] for each in np.unique(size)}


def like_groups(a: dict[int, Int64s], b: dict[int, Int64s]) -> tuple[Group, ...]:
    """The sizes that occur, those that most of a's steps have first.

    Only the 16 sizes on both sides that most steps have get a weight.
    """
    nothing = np.zeros(0, np.int64)
    shared = sorted(a.keys() & b.keys(), key=lambda size: (-len(a[size]), size))[:_MOST_SIZES]
    steps = sum(len(a[size]) for size in shared)

    def each() -> Iterator[Group]:
        for size in sorted(a.keys() | b.keys()):
            weight = len(a[size]) / steps if size in shared else 0.0
            yield Group(size, a.get(size, nothing), b.get(size, nothing), weight)

    return tuple(sorted(each(), key=lambda group: (-len(group.a), -len(group.b), group.size)))

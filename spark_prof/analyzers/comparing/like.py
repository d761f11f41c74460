"""Which steps of recordings are compared: those of the same size, weighted as on side a."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

Int64s = npt.NDArray[np.int64]
Sizes = dict[int, Int64s]

SIZES = {"decode": "decode_requests", "prefill": "prefill_tokens", "unknown": ""}
"""The column that says how large a step of each phase is; steps of unknown phase have no size."""

_MOST_SIZES = 16


@dataclass(frozen=True, eq=False)
class Group:
    """Steps of one size.

    Attributes:
        size: requests that decode, or prompt tokens; 0 where nothing tells.
        places: of the steps, in order: of both sides, of each recording.
        weight: their share in the comparison, 0 where a recording has none.
    """

    size: int
    places: tuple[tuple[Int64s, ...], tuple[Int64s, ...]]
    weight: float

    def steps(self, side: int) -> int:
        """How many one side has, all of its recordings together."""
        return sum(map(len, self.places[side]))


def groups_of(steps: pd.DataFrame, phase: str) -> Sizes:
    """The steps of a phase by their size, as places in order."""
    places = np.flatnonzero(steps["phase"].astype(str).to_numpy() == phase)
    if not SIZES[phase]:
        return {0: places} if len(places) else {}
    size = steps[SIZES[phase]].to_numpy(np.int64)[places]
    return {int(each): places[size == each] for each in np.unique(size)}


def like_groups(a: Sequence[Sizes], b: Sequence[Sizes]) -> tuple[Group, ...]:
    """The sizes that occur, those that most of a's steps have first.

    Only the 16 sizes in all recordings that most steps have get a weight.

    Args:
        a: of each recording of side a.
        b: the same of side b.
    """
    nothing = np.zeros(0, np.int64)
    everywhere = set.intersection(*(set(sizes) for sizes in (*a, *b)))
    number = {size: sum(len(sizes[size]) for sizes in a) for size in everywhere}
    shared = sorted(everywhere, key=lambda size: (-number[size], size))[:_MOST_SIZES]
    steps = sum(number[size] for size in shared)

    def each() -> Iterator[Group]:
        for size in sorted(set().union(*a, *b)):
            weight = number[size] / steps if size in shared else 0.0
            found = [tuple(sizes.get(size, nothing) for sizes in side) for side in (a, b)]
            yield Group(size, (found[0], found[1]), weight)

    ranked = sorted(each(), key=lambda group: (-group.steps(0), -group.steps(1), group.size))
    return tuple(ranked)

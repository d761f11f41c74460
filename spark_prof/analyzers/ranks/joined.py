"""Finds the same step on several ranks: by the fingerprint of its batch and by its place.

A worker numbers the steps that it recorded itself, and ranks may begin at different steps, so
that numbers alone say nothing. A fingerprint can come back, after a preemption or where a dead
request's number is used again, so that it counts only where its neighbours fit too.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence

import pandas as pd


def join_steps(steps: Mapping[int, pd.DataFrame]) -> pd.DataFrame:
    """One row per step that every rank has.

    Args:
        steps: for each rank its rows of the `steps` table, in the order in which they ran.

    Returns:
        One column per rank that holds its step number, in order.
    """
    ranks = sorted(steps)
    first = steps[ranks[0]]
    keys = first["key"].tolist()
    places = {ranks[0]: {place: place for place in range(len(keys))}}
    for rank in ranks[1:]:
        places[rank] = dict(_common(keys, steps[rank]["key"].tolist()))
    shared = sorted(set.intersection(*(set(found) for found in places.values())))
    return pd.DataFrame(
        {
            rank: steps[rank]["step"].to_numpy()[[places[rank][place] for place in shared]]
            for rank in ranks
        }
    )


def _common(left: Sequence[int], right: Sequence[int]) -> list[tuple[int, int]]:
    """Places of the same key in both sequences, ascending in both."""
    once = {key for key, times in Counter(left).items() if times == 1}
    once &= {key for key, times in Counter(right).items() if times == 1}
    where = {key: place for place, key in enumerate(right) if key in once}
    anchors = _ascending([(p, where[key]) for p, key in enumerate(left) if key in once])
    found: list[tuple[int, int]] = []
    before = (-1, -1)
    for anchor in [*anchors, (len(left), len(right))]:
        between = list(range(before[0] + 1, anchor[0])), list(range(before[1] + 1, anchor[1]))
        # Keys that come back are taken only where what lies between two anchors is the same.
        if [left[p] for p in between[0]] == [right[p] for p in between[1]]:
            found += zip(*between, strict=True)
        found.append(anchor)
        before = anchor
    return found[:-1]


def _ascending(pairs: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """The longest part of the pairs, ascending in the first, that ascends in the second too."""
    ends: list[int] = []
    last: list[int] = []
    previous: list[int] = []
    for index, (_, place) in enumerate(pairs):
        slot = bisect_left(ends, place)
        previous.append(last[slot - 1] if slot else -1)
        ends[slot : slot + 1] = [place]
        last[slot : slot + 1] = [index]
    chain: list[tuple[int, int]] = []
    index = last[-1] if last else -1
    while index >= 0:
        chain.append(pairs[index])
        index = previous[index]
    return chain[::-1]

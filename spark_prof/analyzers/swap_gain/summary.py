"""Where the gain of side b over side a came from, from a recording of each."""

from __future__ import annotations

from collections.abc import Sequence

from spark_prof.analyzers.swap_gain.model import Attribution, Swapped, Untraced
from spark_prof.traces.bundle import Bundle

__all__ = ["summarize"]


def summarize(
    a: Bundle,
    b: Bundle,
    swaps: Sequence[Swapped],
    untraced: Untraced | None = None,
    batch_size: int | None = None,
    rank: int = 0,
) -> Attribution:
    """The attribution of the gain of side b over side a.

    Args:
        a: a recording of decode steps of side a, every one of them watched.
        b: one of side b, at the same batch size and context, from the same engine or another one.
        swaps: the live swaps of both sides, one each module.
        untraced: times of a step without recording.
        batch_size: requests that decode in a step; None for the most frequent one of side a.
        rank: whose kernels.

    Raises:
        CommandError: a bundle has no such rank, or no two such steps after one another.
    """
    raise NotImplementedError

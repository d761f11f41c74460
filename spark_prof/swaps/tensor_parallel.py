"""What the ranks of tensor parallelism do together: add their shares up, and swap the same places.

A captured step exchanges data in an order that all ranks have to keep, so a kernel that falls back
on one of them falls back on all.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from spark_prof.kernels.operands import LARGEST_BATCH
from spark_prof.swaps.guard import GuardedReplacement

Runs = tuple[int, int, tuple[int, ...]]
"""Of a live replacement: the most tokens, new tokens of a request, and the numbers up to 16."""

PlaceKey = tuple[str, str, str, str]
"""Slot, module path, kind and side."""

RankAnswer = tuple[str, dict[PlaceKey, Runs | str]]
"""What failed on a rank, and what runs in each place, or why nothing of this package's does."""


def tensor_parallel_group() -> Any:
    """The group of the ranks that share matrices; None where this process has all of them."""
    try:
        from vllm.distributed import get_tp_group

        group = get_tp_group()
    except (ImportError, AssertionError):  # no vLLM, or none that has been started
        return None
    return group if group.world_size > 1 else None


def all_reduced(share: torch.Tensor) -> torch.Tensor:
    """The sum of what the ranks have, by the function that vLLM's own layers call."""
    from vllm.distributed import tensor_model_parallel_all_reduce

    total: torch.Tensor = tensor_model_parallel_all_reduce(share)
    return total


@contextmanager
def unreduced() -> Iterator[None]:
    """Lets layers return this rank's share: a trial may end at another call on another rank."""
    group = tensor_parallel_group()
    if group is None:
        yield
        return
    group.all_reduce = lambda share: share
    try:
        yield
    finally:
        del group.all_reduce


def agree(places: Mapping[PlaceKey, GuardedReplacement], fault: str) -> None:
    """Turns off what does not run alike on all ranks; each of them has to call this.

    A fault is what failed on this rank, for which nothing is swapped in; empty if nothing did.
    """
    group = tensor_parallel_group()
    if group is None:
        return
    runs = {key: _runs(guarded) for key, guarded in places.items()}
    answers: list[RankAnswer] = [("", {})] * int(group.world_size)
    torch.distributed.all_gather_object(answers, (fault, runs), group=group.cpu_group)
    turn_off_differing(places, answers)


def turn_off_differing(
    places: Mapping[PlaceKey, GuardedReplacement], answers: Sequence[RankAnswer]
) -> None:
    """The same by the answers of all ranks, in their order."""
    for key, mine in [(key, _runs(guarded)) for key, guarded in places.items()]:
        if isinstance(mine, str):
            continue
        for rank, (fault, runs) in enumerate(answers):
            theirs = fault or runs.get(key, "it has no such layer")
            if isinstance(theirs, str):
                places[key].fail(f"vLLM's own kernel runs on rank {rank}: {theirs}", quiet=True)
            elif theirs != mine:
                places[key].fail(f"rank {rank} runs it for other numbers of tokens", quiet=True)


def _runs(guarded: GuardedReplacement) -> Runs | str:
    built = guarded.replacement
    if built is None or not guarded.live:
        return guarded.why
    counts = tuple(count for count in range(1, LARGEST_BATCH + 1) if guarded.takes(count))
    return built.tokens, built.width, counts

"""Whether a call gives the same bits again: at once, in a CUDA graph, behind a late kernel."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch

from spark_prof.kernels.check.late import LateRows
from spark_prof.kernels.check.verdict import same_bits

Results = tuple[torch.Tensor, ...]

_REPLAYS = 2


def difference_again(again: Callable[[], Results], first: Sequence[torch.Tensor]) -> str:
    """What differs from the first results, in words; empty if nothing does."""
    if not _same(again(), first):
        return "a second run gives other bits"
    if first[0].device.type == "cuda" and not _same_in_a_graph(again, first):
        return "a CUDA graph's replay gives other bits"
    return ""


def difference_when_late(
    again: Callable[[Callable[[], None]], Results],  # behind a launch of what writes an argument
    first: Sequence[torch.Tensor],
    late: Sequence[LateRows],
) -> str:
    """The same where an argument is not there yet when the kernel starts, in a CUDA graph."""
    for rows in late:
        if not _same_in_a_graph(partial(again, rows.write), first, rows):
            return "in a CUDA graph it reads before the kernel that writes its input has ended"
    return ""


def _same_in_a_graph(
    again: Callable[[], Results],
    first: Sequence[torch.Tensor],
    late: LateRows | None = None,  # what the graph writes first
) -> bool:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = again()
    for _ in range(_REPLAYS):
        if late is not None:
            # What one kernel of a call leaves for the next is then that of other values. Else one
            # that reads it too early finds the right bits there, of the replay before.
            late.reverse()
            graph.replay()
            late.reverse()
            late.erase()
        for result in captured:
            floats, signed = result.is_floating_point(), result.dtype.is_signed
            result.fill_(torch.nan if floats else -1 if signed else 255)
        graph.replay()
        torch.cuda.synchronize(first[0].device)
        if not _same(captured, first):
            return False
    return True


def _same(results: Sequence[torch.Tensor], first: Sequence[torch.Tensor]) -> bool:
    return all(same_bits(*pair) for pair in zip(first, results, strict=True))

"""Whether a kernel gives the same bits each time, alone and replayed from a CUDA graph."""

from __future__ import annotations

from collections.abc import Callable

import torch

from spark_prof.kernels.check.verdict import same_bits


def first_difference(
    compute: Callable[[torch.Tensor], object], first: torch.Tensor, second: torch.Tensor
) -> str:
    """What differs from the first result, in words; empty if nothing does.

    Args:
        compute: the work, writing its result into the tensor it is given.
        second: what it wrote the second time; overwritten where a GPU replays a graph.
    """
    if not same_bits(first, second):
        return "a second run gives other bits"
    if first.device.type != "cuda":
        return ""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        compute(second)
    for _ in range(2):
        second.fill_(torch.nan)
        graph.replay()
        torch.cuda.synchronize(first.device)
        if not same_bits(first, second):
            return "a CUDA graph's replay gives other bits"
    return ""

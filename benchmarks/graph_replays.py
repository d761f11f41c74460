"""Times of a CUDA graph's replays, for the benchmarks that chain kernels in one."""

from __future__ import annotations

from collections.abc import Callable

import torch


def replay_times(
    step: Callable[[], object], count: int
) -> tuple[torch.cuda.CUDAGraph, list[float]]:
    """A graph of what the step launches, and what each of so many replays took, in milliseconds."""
    step()
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        step()
    times = []
    for _ in range(count):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end))
    return graph, times

"""Times of a CUDA graph's replays, for the benchmarks that chain kernels in one."""

from __future__ import annotations

from collections.abc import Callable

import torch

from spark_prof.kernels.check.repeats import difference_again


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


def same_when_replayed(step: Callable[[], torch.Tensor]) -> bool:
    """Whether a graph's replay gives the bits of the same launches one after the other.

    In a graph kernels start before those ahead of them have ended: what one of them then reads too
    early shows here, and in none of them alone.
    """
    return not difference_again(lambda: (step(),), [step().clone()])

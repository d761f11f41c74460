"""How long the smallest kernel takes, launched one by one and inside a CUDA graph."""

from __future__ import annotations

from collections.abc import Iterator

from spark_prof.profiler.measuring.timing import Device, Seconds
from spark_prof.traces.measured import Measurement

_KERNELS = 1000


def launches(device: Device) -> Iterator[Measurement]:
    """Time per kernel of a thousand that do nothing, back to back on one stream of a GPU.

    Args:
        device: the GPU; of a processor nothing is measured.
    """
    if not device.is_gpu:
        return
    cuda = device.torch.cuda

    def many() -> None:
        for _ in range(_KERNELS):
            # A kernel that waits for no cycles and touches no memory.
            cuda._sleep(0)

    many()
    device.finish()
    yield _each(device.seconds(many), "launch_eager", "launched one by one")
    graph = cuda.CUDAGraph()
    with cuda.graph(graph):
        many()
    yield _each(device.seconds(graph.replay), "launch_graph", "nodes of one CUDA graph")


def _each(seconds: Seconds, quantity: str, how: str) -> Measurement:
    return Measurement(
        quantity=quantity,
        value=seconds.median / _KERNELS,
        unit="s",
        lowest=min(seconds.repeats) / _KERNELS,
        highest=max(seconds.repeats) / _KERNELS,
        repeats=len(seconds.repeats),
        how=f"{_KERNELS:,} empty kernels, {how}",
    )

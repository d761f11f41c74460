"""What a machine reaches: reading, writing, copying, and kernels that do nothing.

`spark-prof doctor --measure` and `spark-prof kernels bench` measure it in the same way.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from statistics import median
from typing import Any

import psutil
import torch

from spark_prof.kernels.bench.race import gpu_seconds

_WARM_UPS = 3
_FEWEST, _MOST = 5, 25
_LONGEST_S = 1.0
_QUEUE_CYCLES = 200_000  # about a tenth of a millisecond


class Device:
    """A GPU or the processor, cuda or cpu, and how work on it is timed."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_gpu = name == "cuda"

    def matrix(self, side: int, dtype: Any) -> Any:
        """A square matrix there of normally distributed numbers: zeros would flatter the clocks."""
        return torch.randn(side, side, dtype=dtype, device=self.name)

    def finish(self) -> None:
        """Waits until all work is done."""
        if self.is_gpu:
            torch.cuda.synchronize()

    def seconds(
        self, work: Callable[[], object], before: Callable[[], object] = lambda: None
    ) -> list[float]:
        """Seconds that a piece of work takes, measured 5 to 25 times, about a second in all.

        What comes before each is not timed, such as what makes the cache cold.
        """

        def once() -> float:
            before()
            if self.is_gpu:
                return max(gpu_seconds(work, _QUEUE_CYCLES), 1e-9)
            begun = time.perf_counter()
            work()
            return max(time.perf_counter() - begun, 1e-9)

        for _ in range(_WARM_UPS):
            once()
        repeats: list[float] = []
        begun = time.perf_counter()
        while len(repeats) < _FEWEST or (
            len(repeats) < _MOST and time.perf_counter() - begun < _LONGEST_S
        ):
            repeats.append(once())
        return repeats


_GIB = 1 << 30
_LARGEST = _GIB
_SMALLEST = 64 << 20
_CACHES = 16
_USUAL_CACHE = 64 << 20  # where nothing tells how large the last cache is


@dataclass(frozen=True)
class Room:
    """How much memory the measurements may take."""

    free_bytes: int  # what is free, of memory that GPU and processor share the smaller account
    cache_bytes: int  # size of the last cache before the memory
    limit_bytes: int  # how much may be taken at a time
    # How large one buffer may be, a multiple of 1 MiB; 0 where too little is free.
    buffer_bytes: int


def room_of(device: Device) -> Room:
    """A buffer of at most an eighth of the free memory and 1 GiB: the machine may be serving.

    A processor and an integrated GPU share their memory with everything else that runs.
    """
    free = int(psutil.virtual_memory().available)
    cache = _USUAL_CACHE
    if device.is_gpu:
        properties = torch.cuda.get_device_properties(torch.cuda.current_device())
        cache = int(getattr(properties, "L2_cache_size", 0)) or _USUAL_CACHE
        on_device = int(torch.cuda.mem_get_info()[0])
        shared = bool(getattr(properties, "is_integrated", False))
        free = min(free, on_device) if shared else on_device
    limit = min(_LARGEST, free // 8)
    size = min(limit, max(_CACHES * cache, 512 << 20))
    # Less than four caches would measure the cache.
    size = size >> 20 << 20 if size >= max(4 * cache, _SMALLEST) else 0
    return Room(free, cache, limit, size)


_PROGRAMS_PER_SM = 8


@dataclass(frozen=True)
class TimedAmount:
    """One figure of a machine: so much of something in each of these times."""

    quantity: str  # read, write, copy (bytes), launch_eager or launch_graph (kernels)
    amount: float
    seconds: list[float]
    how: str  # what ran

    @property
    def rates(self) -> list[float]:
        """Amount per second, one rate for each of the times."""
        return [self.amount / duration for duration in self.seconds]


def bandwidths(device: Device, room: Room) -> Iterator[TimedAmount]:
    """Read, write and copy bandwidth of a buffer that is much larger than the cache."""
    count = room.buffer_bytes // 4
    buffer = torch.empty(count, device=device.name).fill_(1.0)
    spoil = (
        torch.empty(max(room.cache_bytes // 2, 1), device=device.name) if device.is_gpu else None
    )

    def cold() -> None:
        # Twice the cache's size, written: nothing of the buffer is left in it.
        if spoil is not None:
            spoil.fill_(0.0)

    size = f"{count * 4 / 2**30:.2f} GiB of float32"
    readers: list[tuple[str, Callable[[], object]]] = [("torch.sum", buffer.sum)]
    if device.is_gpu:
        # Triton is missing or cannot compile here: torch's reader stands alone.
        with suppress(Exception):
            from spark_prof.kernels.bench.triton_reader import reader

            properties = torch.cuda.get_device_properties(buffer.device)
            programs = int(properties.multi_processor_count) * _PROGRAMS_PER_SM
            read = reader(buffer, torch.empty(programs, device=device.name))
            read()
            device.finish()
            readers.append(("a Triton kernel that adds up", read))
    size_bytes = count * 4
    read_times = [
        TimedAmount("read", size_bytes, device.seconds(read, cold), f"{name}, {size}")
        for name, read in readers
    ]
    yield min(read_times, key=lambda timed: median(timed.seconds))
    write_seconds = device.seconds(lambda: buffer.fill_(2.0), cold)
    yield TimedAmount("write", size_bytes, write_seconds, f"Tensor.fill_, {size}")
    half = count // 2
    source, target = buffer[:half], buffer[half : 2 * half]
    copied = device.seconds(lambda: target.copy_(source), cold)
    yield TimedAmount(
        "copy", half * 8, copied, f"Tensor.copy_ within {size}, bytes read and written"
    )


_KERNELS = 1000


def launches(device: Device) -> Iterator[TimedAmount]:
    """A thousand kernels that do nothing, back to back on one stream of a GPU."""
    if not device.is_gpu:
        return
    cuda = torch.cuda

    def empty_kernels() -> None:
        for _ in range(_KERNELS):
            # A kernel that waits for no cycles and touches no memory.
            cuda._sleep(0)

    empty_kernels()
    device.finish()
    how = f"{_KERNELS:,} empty kernels, "
    yield TimedAmount(
        "launch_eager", _KERNELS, device.seconds(empty_kernels), how + "launched one by one"
    )
    graph = cuda.CUDAGraph()
    with cuda.graph(graph):
        empty_kernels()
    replayed = device.seconds(graph.replay)
    yield TimedAmount("launch_graph", _KERNELS, replayed, how + "nodes of one CUDA graph")

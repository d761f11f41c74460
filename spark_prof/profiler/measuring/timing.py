"""Times work on a GPU with its own clock, or on a processor."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Any

from spark_prof.traces.measured import Measurement

_WARM_UPS = 3
_FEWEST, _MOST = 5, 25
_LONGEST_S = 1.0
_QUEUE_CYCLES = 200_000
"""About a tenth of a millisecond."""


@dataclass(frozen=True)
class Seconds:
    """How long one piece of work took, each repeat."""

    repeats: tuple[float, ...]

    @property
    def median(self) -> float:
        """The one in the middle."""
        return median(self.repeats)

    def rate(self, quantity: str, amount: float, unit: str, how: str) -> Measurement:
        """Amount over time."""
        slowest, fastest = max(self.repeats), min(self.repeats)
        return Measurement(
            quantity=quantity,
            value=amount / self.median,
            unit=unit,
            lowest=amount / slowest,
            highest=amount / fastest,
            repeats=len(self.repeats),
            how=how,
        )


class Device:
    """A GPU or the processor, and how work on it is timed.

    Args:
        name: cuda or cpu, as torch calls them.

    Attributes:
        torch: the module.
        is_gpu: whether it is a GPU.
    """

    def __init__(self, name: str) -> None:
        import torch

        self.torch = torch
        self.name = name
        self.is_gpu = name == "cuda"

    def empty(self, count: int, dtype: Any) -> Any:
        """A tensor there, with whatever its memory held."""
        return self.torch.empty(count, dtype=dtype, device=self.name)

    def matrix(self, side: int, dtype: Any) -> Any:
        """A square matrix there of normally distributed numbers: zeros would flatter the clocks."""
        return self.torch.randn(side, side, dtype=dtype, device=self.name)

    def finish(self) -> None:
        """Waits until all work is done."""
        if self.is_gpu:
            self.torch.cuda.synchronize()

    def seconds(
        self, work: Callable[[], object], before: Callable[[], object] | None = None
    ) -> Seconds:
        """Times a piece of work some 5 to 25 times, about a second in all.

        Args:
            work: runs it once.
            before: runs before each, untimed, such as what makes the cache cold.
        """
        once = self._once_on_gpu if self.is_gpu else self._once
        for _ in range(_WARM_UPS):
            once(work, before)
        repeats: list[float] = []
        begun = time.perf_counter()
        while len(repeats) < _FEWEST or (
            len(repeats) < _MOST and time.perf_counter() - begun < _LONGEST_S
        ):
            repeats.append(once(work, before))
        return Seconds(tuple(repeats))

    def _once(self, work: Callable[[], object], before: Callable[[], object] | None) -> float:
        if before:
            before()
        begun = time.perf_counter()
        work()
        return max(time.perf_counter() - begun, 1e-9)

    def _once_on_gpu(
        self, work: Callable[[], object], before: Callable[[], object] | None
    ) -> float:
        cuda = self.torch.cuda
        begin, end = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
        if before:
            before()
        # The host launches the work while the GPU still waits: no launch is timed with it.
        cuda._sleep(_QUEUE_CYCLES)
        begin.record()
        work()
        end.record()
        end.synchronize()
        # Milliseconds, to about half a microsecond.
        return max(float(begin.elapsed_time(end)) / 1e3, 1e-9)


_GIB = 1 << 30
_LARGEST = _GIB
_SMALLEST = 64 << 20
_CACHES = 16
_USUAL_CACHE = 64 << 20
"""Where nothing tells how large the last cache is."""


@dataclass(frozen=True)
class Room:
    """What may be taken."""

    free_bytes: int  # what is free, of memory that GPU and processor share the smaller account
    cache_bytes: int  # size of the last cache before the memory
    limit_bytes: int  # how much may be taken at a time
    # How large one buffer may be, a multiple of 1 MiB; 0 where too little is free.
    buffer_bytes: int


def room_of(device: Device) -> Room:
    """At most an eighth of what is free, and at most 1 GiB: the machine may be serving.

    A processor and an integrated GPU share their memory with everything else that runs.
    """
    import psutil

    free = int(psutil.virtual_memory().available)
    cache = _USUAL_CACHE
    if device.is_gpu:
        properties = device.torch.cuda.get_device_properties(device.torch.cuda.current_device())
        cache = int(getattr(properties, "L2_cache_size", 0)) or _USUAL_CACHE
        on_device = int(device.torch.cuda.mem_get_info()[0])
        shared = bool(getattr(properties, "is_integrated", False))
        free = min(free, on_device) if shared else on_device
    limit = min(_LARGEST, free // 8)
    size = min(limit, max(_CACHES * cache, 512 << 20))
    # Less than four caches would measure the cache.
    size = size >> 20 << 20 if size >= max(4 * cache, _SMALLEST) else 0
    return Room(free, cache, limit, size)

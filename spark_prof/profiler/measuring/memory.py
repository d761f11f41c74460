"""How much memory may be taken for measuring."""

from __future__ import annotations

from dataclasses import dataclass

from spark_prof.profiler.measuring.timing import Device

_GIB = 1 << 30
_LARGEST = _GIB
_SMALLEST = 64 << 20
_CACHES = 16
_USUAL_CACHE = 64 << 20
"""Where nothing tells how large the last cache is."""


@dataclass(frozen=True)
class Room:
    """What may be taken.

    Attributes:
        free_bytes: what is free, of memory that GPU and processor share the smaller account.
        cache_bytes: size of the last cache before the memory.
        limit_bytes: how much may be taken at a time.
        buffer_bytes: how large one buffer may be, a multiple of 1 MiB; 0 where too little is free.
    """

    free_bytes: int
    cache_bytes: int
    limit_bytes: int
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

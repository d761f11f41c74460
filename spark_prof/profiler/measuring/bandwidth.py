"""How fast memory is read, written and copied by kernels that do nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress

from spark_prof.profiler.measuring.memory import Room
from spark_prof.profiler.measuring.timing import Device
from spark_prof.traces.measured import Measurement

_PROGRAMS_PER_SM = 8


def bandwidths(device: Device, room: Room) -> Iterator[Measurement]:
    """Read, write and copy bandwidth of a buffer that is much larger than the cache.

    Args:
        device: whose memory.
        room: how large the buffer may be.
    """
    torch = device.torch
    count = room.buffer_bytes // 4
    buffer = device.empty(count, torch.float32).fill_(1.0)
    spoil = device.empty(max(room.cache_bytes // 2, 1), torch.float32) if device.is_gpu else None

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
            read = reader(buffer, device.empty(programs, torch.float32))
            read()
            device.finish()
            readers.append(("a Triton kernel that adds up", read))
    found = [
        device.seconds(read, cold).rate("read", count * 4, "B/s", f"{name}, {size}")
        for name, read in readers
    ]
    yield max(found, key=lambda measurement: measurement.value)
    yield device.seconds(lambda: buffer.fill_(2.0), cold).rate(
        "write", count * 4, "B/s", f"Tensor.fill_, {size}"
    )
    half = count // 2
    source, target = buffer[:half], buffer[half : 2 * half]
    yield device.seconds(lambda: target.copy_(source), cold).rate(
        "copy", half * 8, "B/s", f"Tensor.copy_ within {size}, bytes read and written"
    )

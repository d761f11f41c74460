"""What the machine reaches: reading, copying, and the launch of a kernel that does nothing."""

from __future__ import annotations

from contextlib import suppress

import torch

from spark_prof.kernels.bench.race import Call, repeated
from spark_prof.kernels.bench.results import Ceilings, Spread, spread

_LARGEST_BUFFER = 1 << 30
_SHARE_OF_FREE = 16
_REPEATS = 20
_CALLS = 4
_EMPTY_KERNELS = 1000
_PROGRAMS_PER_SM = 8
_TRITON_BLOCK_BYTES = 1 << 14


def measure_ceilings(device: torch.device, largest: int = _LARGEST_BUFFER) -> Ceilings:
    """Measures them by CUDA graphs, as the kernels are; some tenths of a second.

    Args:
        device: a GPU; on a processor a launch is a call from Python.
        largest: bytes of each of the two buffers, unless less memory is free.
    """
    size = min(largest, _free(device) // _SHARE_OF_FREE) // _TRITON_BLOCK_BYTES
    count = max(size, 1) * _TRITON_BLOCK_BYTES // 4
    buffers = [torch.randn(count, dtype=torch.float32, device=device) for _ in range(2)]
    # Turn by turn each buffer pushes the other out of the cache.
    readers: dict[str, Call] = {"torch.sum": lambda number: buffers[number % 2].sum()}
    if device.type == "cuda":
        # Triton is missing or cannot compile here: torch's reader stands alone.
        with suppress(Exception):
            readers["a Triton kernel that adds up"] = _triton_reader(buffers)
    moved = {name: _rates(call, buffers[0].nbytes, device) for name, call in readers.items()}
    best = max(moved, key=lambda name: moved[name].median)
    half = count // 2
    copied = _rates(
        lambda number: buffers[number % 2][:half].copy_(buffers[number % 2][half : 2 * half]),
        2 * half * 4,
        device,
    )
    size_read = f"{buffers[0].nbytes / 2**30:.2f} GiB of float32"
    return Ceilings(
        read=moved[best],
        copy=copied,
        launch_us=_launch_us(device),
        read_by=f"{best}, {size_read}",
        copied_by=f"Tensor.copy_ within {size_read}, bytes read and written",
        launched=f"{_EMPTY_KERNELS:,} empty kernels in one CUDA graph",
    )


def _rates(call: Call, size: int, device: torch.device) -> Spread:
    """Bytes a second, each call moving `size`."""
    runs = repeated(call, _CALLS, device)
    runs.seconds()
    return spread([_CALLS * size / runs.seconds() for _ in range(_REPEATS)])


def _triton_reader(buffers: list[torch.Tensor]) -> Call:
    from spark_prof.kernels.bench.triton_reader import reader

    processors = torch.cuda.get_device_properties(buffers[0].device).multi_processor_count
    sums = buffers[0].new_empty(processors * _PROGRAMS_PER_SM)
    reads = [reader(buffer, sums) for buffer in buffers]
    reads[0]()

    def call(number: int) -> torch.Tensor:
        reads[number % 2]()
        return sums

    return call


def _launch_us(device: torch.device) -> Spread:
    empty = torch.empty(0)

    def call(_: int) -> torch.Tensor:
        if device.type == "cuda":
            # A kernel that waits for no cycles and touches no memory.
            torch.cuda._sleep(0)
        return empty

    runs = repeated(call, _EMPTY_KERNELS, device)
    runs.seconds()
    return spread([1e6 * runs.seconds() / _EMPTY_KERNELS for _ in range(_REPEATS)])


def _free(device: torch.device) -> int:
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return 1 << 32

"""Measures the ceilings of this machine: what `spark-prof doctor --measure` runs.

Nothing that analyzes a recording imports this: it needs torch, and a GPU that does nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from spark_prof.errors import CommandError
from spark_prof.profiler.measuring.timing import Device, Room, Seconds
from spark_prof.traces.measured import Measured, Measurement

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


if TYPE_CHECKING:
    from spark_prof.profiler.measuring.timing import Device, Room


def measure(progress: Callable[[str], None] | None = None) -> Measured:
    """Measures the GPU of this process, or the processor where torch sees no GPU.

    It takes about half a minute and at most 2 GiB of memory.

    Args:
        progress: is told, in a line, what is measured next.

    Raises:
        CommandError: torch is not installed.
    """
    try:
        import torch
    except ImportError as error:
        raise CommandError(
            f"measuring needs torch ({error}); run it with the Python that runs vLLM"
        ) from error
    from spark_prof.profiler.facts import device_facts
    from spark_prof.profiler.measuring.gpu_state import device_state
    from spark_prof.profiler.measuring.timing import Device, room_of

    device = Device("cuda" if torch.cuda.is_available() else "cpu")
    facts = device_facts()
    uuid = ""
    if device.is_gpu:
        properties = torch.cuda.get_device_properties(torch.cuda.current_device())
        uuid = f"GPU-{properties.uuid}"
    before = device_state(uuid)
    room = room_of(device)
    measurements: list[Measurement] = []
    notes: list[str] = []
    with torch.inference_mode():
        for found in _all(device, room, progress or (lambda _: None)):
            if isinstance(found, str):
                notes.append(found)
            else:
                measurements.append(found)
    after = device_state(uuid)
    capability = facts.get("compute_capability")
    return Measured(
        device=str(facts.get("name") or "unknown"),
        taken=datetime.now(UTC).isoformat(timespec="seconds"),
        measurements=tuple(measurements),
        before=before,
        after=after,
        uuid=uuid,
        compute_capability=str(capability) if capability else None,
        driver=str(facts.get("driver") or ""),
        torch=str(torch.__version__),
        notes=tuple(notes),
    )


def _all(
    device: Device, room: Room, progress: Callable[[str], None]
) -> Iterator[Measurement | str]:
    """Every measurement, or why one is missing; one that fails does not take the rest along."""
    from spark_prof.profiler.measuring.products import products

    parts: list[tuple[str, Callable[[], Iterator[Measurement | str]]]] = [
        ("launches", lambda: launches(device)),
        ("matrix products", lambda: products(device, room)),
    ]
    if room.buffer_bytes:
        parts.insert(0, ("memory bandwidth", lambda: bandwidths(device, room)))
    else:
        yield (
            f"Memory bandwidth was not measured: of {room.free_bytes / 2**30:.1f} GiB free memory "
            "an eighth is not much larger than the cache."
        )
    for name, part in parts:
        progress(f"measuring {name}")
        try:
            yield from part()
            if device.is_gpu:
                # What is kept for reuse would come on top of what the next part takes.
                device.torch.cuda.empty_cache()
        except RuntimeError as error:
            # Torch's errors, a full memory among them, are all of this type.
            reason = (str(error).strip() or type(error).__name__).splitlines()[0][:200]
            yield f"The measurement of {name} ended early: {reason}"

"""Measures the ceilings of this machine: what `spark-prof doctor --measure` runs.

Nothing that analyzes a recording imports this: it needs torch, and a GPU that does nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from spark_prof.errors import CommandError
from spark_prof.traces.measured import Measured, Measurement

if TYPE_CHECKING:
    from spark_prof.profiler.measuring.memory import Room
    from spark_prof.profiler.measuring.timing import Device


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
    from spark_prof.profiler.measuring.memory import room_of
    from spark_prof.profiler.measuring.state import device_state
    from spark_prof.profiler.measuring.timing import Device

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
    from spark_prof.profiler.measuring.bandwidth import bandwidths
    from spark_prof.profiler.measuring.launches import launches
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

"""Measures the ceilings of this machine: what `spark-prof doctor --measure` runs.

Nothing that analyzes a recording imports this: it needs torch, and a GPU that does nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from statistics import median
from typing import Any

import torch

from spark_prof.kernels.bench.ceilings import (
    Device,
    Room,
    TimedAmount,
    bandwidths,
    launches,
    room_of,
)
from spark_prof.kernels.bench.node_price import node_prices
from spark_prof.kernels.kernel_error import KernelError
from spark_prof.profiler.facts import device_facts, device_state
from spark_prof.traces.measured import MeasuredMachine, Measurement
from spark_prof.vocabulary import PRECISIONS


def rate(timed: TimedAmount, unit: str) -> Measurement:
    """Amount over time, that of the repeat in the middle."""
    amount, seconds = timed.amount, timed.seconds
    return Measurement(
        quantity=timed.quantity,
        value=amount / median(seconds),
        unit=unit,
        lowest=amount / max(seconds),
        highest=amount / min(seconds),
        repeats=len(seconds),
        how=timed.how,
    )


def each_of(timed: TimedAmount) -> Measurement:
    """Time over amount."""
    unit_seconds = [value / timed.amount for value in timed.seconds]
    return Measurement(
        timed.quantity,
        median(unit_seconds),
        "s",
        min(unit_seconds),
        max(unit_seconds),
        len(unit_seconds),
        timed.how,
    )


_SIDES = (512, 1024, 2048, 4096, 8192)
_LONG_ENOUGH_S = 0.002
"""A product that takes longer is not made larger: its start and end weigh little by then."""

_BYTES_PER_ELEMENT = 12
"""Most that two operands, what they are made of and the result take: those of float32."""

Product = Callable[[], object]


def products(device: Device, room: Room) -> Iterator[Measurement | str]:
    """The best rate in each precision over square products of growing size, or why not."""
    for precision in PRECISIONS:
        make, with_what = _MAKERS[precision]
        best: Measurement | None = None
        reason = "too little memory is free"
        for side in _SIDES:
            if side * side * _BYTES_PER_ELEMENT > room.limit_bytes:
                break
            try:
                with _full_float32(precision == "fp32"):
                    seconds = device.seconds(make(device, side))
            except Exception as error:
                # Torch says in many types that hardware or build cannot do this.
                reason = _reason(error)
                break
            how = f"{side} x {side} x {side}, {with_what}"
            measurement = rate(TimedAmount(precision, 2.0 * side**3, seconds, how), "op/s")
            if best is None or measurement.value > best.value:
                best = measurement
            if median(seconds) > _LONG_ENOUGH_S:
                break
        yield best if best else f"{precision} products were not measured: {reason}"


@contextmanager
def _full_float32(full: bool) -> Iterator[None]:
    """Lets products of float32 round their operands to TF32, or not."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest" if full else "high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def _plain(dtype: str) -> Callable[[Device, int], Product]:
    def make(device: Device, side: int) -> Product:
        kind = getattr(torch, dtype)
        a, b = device.matrix(side, kind), device.matrix(side, kind)
        out = torch.empty_like(a)
        return lambda: torch.mm(a, b.t(), out=out)

    return make


def _tf32(device: Device, side: int) -> Product:
    # On a processor "high" is another format, and not every one has it.
    if not device.is_gpu:
        raise RuntimeError("a GPU's format")
    return _plain("float32")(device, side)


def _fp8(device: Device, side: int) -> Product:
    if not device.is_gpu:
        raise RuntimeError("needs a GPU")
    a, b = (device.matrix(side, torch.bfloat16).to(torch.float8_e4m3fn) for _ in range(2))
    one = torch.ones((), dtype=torch.float32, device=device.name)
    return lambda: torch._scaled_mm(
        a, b.t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16, use_fast_accum=True
    )


def _fp4(device: Device, side: int) -> Product:
    """NVFP4: two E2M1 in a byte, and an E4M3 scale for each 16 of them, in blocks of 128 x 4."""
    if not device.is_gpu:
        raise RuntimeError("needs a GPU")

    def operand() -> tuple[Any, Any]:
        packed = torch.randint(0, 256, (side, side // 2), dtype=torch.uint8, device=device.name)
        scales = torch.ones(side * side // 16, dtype=torch.float32, device=device.name)
        return packed.view(torch.float4_e2m1fn_x2), scales.to(torch.float8_e4m3fn)

    (a, scale_a), (b, scale_b) = operand(), operand()
    return lambda: torch._scaled_mm(
        a, b.t(), scale_a=scale_a, scale_b=scale_b, out_dtype=torch.bfloat16
    )


def _int8(device: Device, side: int) -> Product:
    a, b = (
        torch.randint(-8, 8, (side, side), dtype=torch.int8, device=device.name) for _ in range(2)
    )
    return lambda: torch._int_mm(a, b.t())


_MAKERS: dict[str, tuple[Callable[[Device, int], Product], str]] = {
    "bf16": (_plain("bfloat16"), "torch.mm"),
    "fp16": (_plain("float16"), "torch.mm"),
    "tf32": (_tf32, "torch.mm of float32 with TF32 allowed"),
    "fp32": (_plain("float32"), "torch.mm without TF32"),
    "fp8": (_fp8, "torch._scaled_mm of E4M3, fast accumulation"),
    "fp4": (_fp4, "torch._scaled_mm of NVFP4"),
    "int8": (_int8, "torch._int_mm"),
}


def measure(progress: Callable[[str], None]) -> MeasuredMachine:
    """Measures the GPU of this process, or the processor where torch sees no GPU.

    It takes about half a minute and at most 2 GiB of memory.
    """
    device = Device("cuda" if torch.cuda.is_available() else "cpu")
    facts = device_facts()
    uuid = f"GPU-{torch.cuda.get_device_properties(None).uuid}" if device.is_gpu else ""
    before = device_state(uuid)
    room = room_of(device)
    with torch.inference_mode():
        measurements = list(_all(device, room, progress))
    after = device_state(uuid)
    capability = facts.get("compute_capability")
    return MeasuredMachine(
        device=str(facts.get("name") or "unknown"),
        taken=datetime.now(UTC).isoformat(timespec="seconds"),
        measurements=tuple(entry for entry in measurements if not isinstance(entry, str)),
        before=before,
        after=after,
        uuid=uuid,
        compute_capability=str(capability) if capability else None,
        driver=str(facts.get("driver") or ""),
        torch=str(torch.__version__),
        notes=tuple(entry for entry in measurements if isinstance(entry, str)),
    )


def _all(
    device: Device, room: Room, progress: Callable[[str], None]
) -> Iterator[Measurement | str]:
    """Every measurement, or why one is missing; one that fails does not take the rest along."""
    parts: list[tuple[str, Callable[[], Iterator[Measurement | str]]]] = [
        ("launches", lambda: map(each_of, launches(device))),
        ("nodes of CUDA graphs", lambda: map(each_of, node_prices(torch.device(device.name)))),
        ("matrix products", lambda: products(device, room)),
    ]
    if room.buffer_bytes:
        rates = (rate(timed, "B/s") for timed in bandwidths(device, room))
        parts.insert(0, ("memory bandwidth", lambda: rates))
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
                torch.cuda.empty_cache()
        except (RuntimeError, KernelError) as error:
            # Torch's errors, a full memory among them, are all of the first type; the other is
            # what has no compiler.
            yield f"The measurement of {name} ended early: {_reason(error)}"


def _reason(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0][:200]

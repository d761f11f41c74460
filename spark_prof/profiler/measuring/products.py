"""How many operations per second a large matrix product reaches in each precision."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from spark_prof.profiler.measuring.timing import Device, Room
from spark_prof.traces.measured import Measurement
from spark_prof.vocabulary import PRECISIONS

_SIDES = (512, 1024, 2048, 4096, 8192)
_LONG_ENOUGH_S = 0.002
"""A product that takes longer is not made larger: its start and end weigh little by then."""

_BYTES_PER_ELEMENT = 12
"""Most that two operands, what they are made of and the result take: those of float32."""

Product = Callable[[], object]


def products(device: Device, room: Room) -> Iterator[Measurement | str]:
    """The best rate in each precision, over square products of growing size.

    Args:
        device: what multiplies.
        room: how much memory may be taken.

    Yields:
        A measurement, or a sentence on a precision that could not be measured.
    """
    for precision in PRECISIONS:
        best: Measurement | None = None
        reason = "too little memory is free"
        for side in _SIDES:
            if side * side * _BYTES_PER_ELEMENT > room.limit_bytes:
                break
            try:
                with _full_float32(device, precision == "fp32"):
                    work = _MAKERS[precision](device, side)
                    seconds = device.seconds(work)
            except Exception as error:
                # Torch says in many types that hardware or build cannot do this.
                reason = (str(error).strip() or type(error).__name__).splitlines()[0][:200]
                break
            how = f"{side} x {side} x {side}, {_HOW[precision]}"
            found = seconds.rate(precision, 2.0 * side**3, "op/s", how)
            if best is None or found.value > best.value:
                best = found
            if seconds.median > _LONG_ENOUGH_S:
                break
        yield best if best else f"{precision} products were not measured: {reason}"


@contextmanager
def _full_float32(device: Device, full: bool) -> Iterator[None]:
    """Lets products of float32 round their operands to TF32, or not."""
    torch = device.torch
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest" if full else "high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def _plain(dtype: str) -> Callable[[Device, int], Product]:
    def make(device: Device, side: int) -> Product:
        kind = getattr(device.torch, dtype)
        a, b = device.matrix(side, kind), device.matrix(side, kind)
        out = device.torch.empty_like(a)
        return lambda: device.torch.mm(a, b.t(), out=out)

    return make


def _tf32(device: Device, side: int) -> Product:
    # On a processor "high" is another format, and not every one has it.
    if not device.is_gpu:
        raise RuntimeError("a GPU's format")
    return _plain("float32")(device, side)


def _fp8(device: Device, side: int) -> Product:
    torch = device.torch
    if not device.is_gpu:
        raise RuntimeError("needs a GPU")
    a, b = (device.matrix(side, torch.bfloat16).to(torch.float8_e4m3fn) for _ in range(2))
    one = torch.ones((), dtype=torch.float32, device=device.name)
    return lambda: torch._scaled_mm(
        a, b.t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16, use_fast_accum=True
    )


def _fp4(device: Device, side: int) -> Product:
    """NVFP4: two E2M1 in a byte, and an E4M3 scale for each 16 of them, in blocks of 128 x 4."""
    torch = device.torch
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
    torch = device.torch
    a, b = (
        torch.randint(-8, 8, (side, side), dtype=torch.int8, device=device.name) for _ in range(2)
    )
    return lambda: torch._int_mm(a, b.t())


_MAKERS: dict[str, Callable[[Device, int], Product]] = {
    "bf16": _plain("bfloat16"),
    "fp16": _plain("float16"),
    "tf32": _tf32,
    "fp32": _plain("float32"),
    "fp8": _fp8,
    "fp4": _fp4,
    "int8": _int8,
}

_HOW = {
    "bf16": "torch.mm",
    "fp16": "torch.mm",
    "tf32": "torch.mm of float32 with TF32 allowed",
    "fp32": "torch.mm without TF32",
    "fp8": "torch._scaled_mm of E4M3, fast accumulation",
    "fp4": "torch._scaled_mm of NVFP4",
    "int8": "torch._int_mm",
}

"""Measures the ceilings of this machine: what `spark-prof doctor --measure` runs.

Nothing that analyzes a recording imports this: it needs torch, and a GPU that does nothing else.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from statistics import median
from typing import Any

from spark_prof.errors import CommandError
from spark_prof.profiler.facts import device_facts, device_state
from spark_prof.traces.measured import Measured, Measurement
from spark_prof.vocabulary import PRECISIONS

_WARM_UPS = 3
_FEWEST, _MOST = 5, 25
_LONGEST_S = 1.0
_QUEUE_CYCLES = 200_000
"""About a tenth of a millisecond."""


def rate(quantity: str, seconds: list[float], amount: float, unit: str, how: str) -> Measurement:
    """Amount over time, that of the repeat in the middle."""
    return Measurement(
        quantity=quantity,
        value=amount / median(seconds),
        unit=unit,
        lowest=amount / max(seconds),
        highest=amount / min(seconds),
        repeats=len(seconds),
        how=how,
    )


class Device:
    """A GPU or the processor, and how work on it is timed.

    Args:
        name: cuda or cpu, as torch calls them.
    """

    def __init__(self, name: str) -> None:
        import torch

        self.torch = torch
        self.name = name
        self.is_gpu = name == "cuda"

    def matrix(self, side: int, dtype: Any) -> Any:
        """A square matrix there of normally distributed numbers: zeros would flatter the clocks."""
        return self.torch.randn(side, side, dtype=dtype, device=self.name)

    def finish(self) -> None:
        """Waits until all work is done."""
        if self.is_gpu:
            self.torch.cuda.synchronize()

    def seconds(
        self, work: Callable[[], object], before: Callable[[], object] = lambda: None
    ) -> list[float]:
        """Seconds that a piece of work takes, measured 5 to 25 times, about a second in all.

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
        return repeats

    def _once(self, work: Callable[[], object], before: Callable[[], object]) -> float:
        before()
        begun = time.perf_counter()
        work()
        return max(time.perf_counter() - begun, 1e-9)

    def _once_on_gpu(self, work: Callable[[], object], before: Callable[[], object]) -> float:
        cuda = self.torch.cuda
        begin, end = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
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


_PROGRAMS_PER_SM = 8


def bandwidths(device: Device, room: Room) -> Iterator[Measurement]:
    """Read, write and copy bandwidth of a buffer that is much larger than the cache."""
    torch = device.torch
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
    found = [
        rate("read", device.seconds(read, cold), count * 4, "B/s", f"{name}, {size}")
        for name, read in readers
    ]
    yield max(found, key=lambda measurement: measurement.value)
    yield rate(
        "write",
        device.seconds(lambda: buffer.fill_(2.0), cold),
        count * 4,
        "B/s",
        f"Tensor.fill_, {size}",
    )
    half = count // 2
    source, target = buffer[:half], buffer[half : 2 * half]
    yield rate(
        "copy",
        device.seconds(lambda: target.copy_(source), cold),
        half * 8,
        "B/s",
        f"Tensor.copy_ within {size}, bytes read and written",
    )


_KERNELS = 1000


def launches(device: Device) -> Iterator[Measurement]:
    """Time per kernel of a thousand that do nothing, back to back on one stream of a GPU."""
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


def _each(seconds: list[float], quantity: str, how: str) -> Measurement:
    each = [value / _KERNELS for value in seconds]
    how = f"{_KERNELS:,} empty kernels, {how}"
    return Measurement(quantity, median(each), "s", min(each), max(each), len(each), how)


_SIDES = (512, 1024, 2048, 4096, 8192)
_LONG_ENOUGH_S = 0.002
"""A product that takes longer is not made larger: its start and end weigh little by then."""

_BYTES_PER_ELEMENT = 12
"""Most that two operands, what they are made of and the result take: those of float32."""

Product = Callable[[], object]


def products(device: Device, room: Room) -> Iterator[Measurement | str]:
    """The best rate in each precision, over square products of growing size.

    Yields:
        A measurement, or a sentence on a precision that could not be measured.
    """
    for precision in PRECISIONS:
        make, with_what = _MAKERS[precision]
        best: Measurement | None = None
        reason = "too little memory is free"
        for side in _SIDES:
            if side * side * _BYTES_PER_ELEMENT > room.limit_bytes:
                break
            try:
                with _full_float32(device, precision == "fp32"):
                    seconds = device.seconds(make(device, side))
            except Exception as error:
                # Torch says in many types that hardware or build cannot do this.
                reason = _reason(error)
                break
            how = f"{side} x {side} x {side}, {with_what}"
            found = rate(precision, seconds, 2.0 * side**3, "op/s", how)
            if best is None or found.value > best.value:
                best = found
            if median(seconds) > _LONG_ENOUGH_S:
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


_MAKERS: dict[str, tuple[Callable[[Device, int], Product], str]] = {
    "bf16": (_plain("bfloat16"), "torch.mm"),
    "fp16": (_plain("float16"), "torch.mm"),
    "tf32": (_tf32, "torch.mm of float32 with TF32 allowed"),
    "fp32": (_plain("float32"), "torch.mm without TF32"),
    "fp8": (_fp8, "torch._scaled_mm of E4M3, fast accumulation"),
    "fp4": (_fp4, "torch._scaled_mm of NVFP4"),
    "int8": (_int8, "torch._int_mm"),
}


def measure(progress: Callable[[str], None]) -> Measured:
    """Measures the GPU of this process, or the processor where torch sees no GPU.

    It takes about half a minute and at most 2 GiB of memory.

    Raises:
        CommandError: torch is not installed.
    """
    try:
        import torch
    except ImportError as error:
        raise CommandError(
            f"measuring needs torch ({error}); run it with the Python that runs vLLM"
        ) from error
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
        for found in _all(device, room, progress):
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
            yield f"The measurement of {name} ended early: {_reason(error)}"


def _reason(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0][:200]

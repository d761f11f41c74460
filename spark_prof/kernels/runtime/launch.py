"""Launches a kernel where its tensors lie: on a GPU through the CUDA driver, on torch's stream.

A launch allocates nothing and waits for nothing, so it can be captured in a CUDA graph. The first
launch of a kernel compiles and loads it; `prepare` does that ahead. cuda.core is not used: nothing
here has shown that its launches can be programmatic dependent ones.
"""

from __future__ import annotations

import ctypes
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch

from spark_prof.cores import cores
from spark_prof.extras import install_command
from spark_prof.kernels.kernel_error import KernelError
from spark_prof.kernels.runtime.code import KernelCode, parameter_count
from spark_prof.kernels.runtime.compiler import architecture_of, compile_code

Argument: TypeAlias = torch.Tensor | int | float | None
"""Of a tensor its address, a C int, a C float, or a null pointer."""

Grid = tuple[int, int, int]

RUNNERS: dict[str, Callable[[KernelCode, Grid, int, Sequence[Argument], bool], None]] = {}
"""What launches on other devices, by torch's type: the tests run the sources on the CPU."""


def prepare(codes: Sequence[KernelCode], device: torch.device) -> None:
    """Readies kernels for their first launch, such as before a graph is captured.

    On a GPU they are compiled, several at a time, and loaded; elsewhere nothing is done.
    """
    if device.type != "cuda":
        return
    index = torch.cuda.current_device() if device.index is None else device.index
    missing = [code for code in dict.fromkeys(codes) if (code, index) not in _loaded]
    with ThreadPoolExecutor(cores()) as pool:
        for code, cubin in zip(missing, pool.map(lambda c: _cubin(c, index), missing), strict=True):
            _load(code, index, cubin)


def launch(
    code: KernelCode,
    grid: Grid,
    block: int,
    arguments: Sequence[Argument],  # what its parameters get, in order
    dependent: bool = False,
) -> None:
    """Launches a kernel on the device of its tensors.

    The caller answers for dtypes, shapes and strides: the kernel sees addresses.

    Within `dependent_launches` every launch of the thread is a dependent one, as in engines.

    A dependent launch may start before the kernel before it in the stream ends, and waits for that
    one itself (programmatic dependent launch): on a GPU if a graph is being captured, as outside of
    one that kernel may have written the weights. What it waits for is the end of that kernel alone,
    which must mean the end of all before. It does where that kernel

    - was launched without this attribute, as most of PyTorch's, Triton's and vLLM's are: it began
      when all before had ended; or
    - waits for its own predecessor in some thread, as every kernel of this package does, and others
      do that are launched with the attribute and read what the kernel before them writes.

    It does not behind a kernel that is launched with the attribute and never waits, such as one of
    CUTLASS that was compiled without CUTLASS_ENABLE_GDC_FOR_SM90, whose wait is then empty.
    """
    devices = {argument.device for argument in arguments if isinstance(argument, torch.Tensor)}
    if len(devices) != 1:
        names = " and on ".join(sorted(map(str, devices))) or "no device: no argument is one"
        raise KernelError(f"{code.label}: tensors on {names}")
    (device,) = devices
    dependent = dependent or _thread.dependent
    if device.type == "cuda":
        _launch_on_gpu(code, device.index, grid, block, arguments, dependent)
    elif device.type in RUNNERS:
        RUNNERS[device.type](code, grid, block, arguments, dependent)
    else:
        raise KernelError(f"{code.label}: the tensors are on {device}, not on a GPU")


_MOST = 64
_SLOT = 8  # bytes between two arguments
_NUMBERS = frozenset((int, float, bool))


class ArgumentSlots:
    """Memory for the arguments of one launch at a time; the driver copies them."""

    def __init__(self) -> None:
        self.values = (ctypes.c_uint64 * _MOST)()
        start = ctypes.addressof(self.values)
        slots = range(start, start + _SLOT * _MOST, _SLOT)
        self._addresses = (ctypes.c_void_p * _MOST)(*slots)
        self.address = ctypes.addressof(self._addresses)


class Signature:
    """The sizes of a kernel's parameters, whose types nobody tells; checks arguments by them."""

    def __init__(self, label: str, parameter_bytes: Sequence[int]) -> None:
        self._label = label
        self._bytes = list(parameter_bytes)
        self._packings: dict[tuple[type, ...], struct.Struct] = {}

    def write(self, arguments: Sequence[Any], slots: ArgumentSlots) -> None:
        """Writes arguments where the driver reads them."""
        kinds = tuple(map(type, arguments))
        packing = self._packings.get(kinds)
        if packing is None:
            packing = self._packings[kinds] = self._packing(kinds)
        values = [
            argument if kind in _NUMBERS else 0 if argument is None else argument.data_ptr()
            for argument, kind in zip(arguments, kinds, strict=True)
        ]
        try:
            packing.pack_into(slots.values, 0, *values)
        except (struct.error, OverflowError) as error:
            raise KernelError(f"{self._label}: an argument is out of range: {error}") from error

    def _packing(self, kinds: Sequence[type]) -> struct.Struct:
        forms: list[tuple[int, str]] = []
        for kind in kinds:
            if kind is type(None) or issubclass(kind, torch.Tensor):
                forms.append((8, "Q"))
            elif kind in _NUMBERS:
                forms.append((4, "f4x" if kind is float else "i4x"))
            else:
                raise KernelError(f"{self._label}: argument {len(forms)} is a {kind.__name__}")
        sizes = [size for size, _ in forms]
        if sizes != self._bytes:
            raise KernelError(
                f"{self._label} has parameters of {self._bytes} bytes; the arguments have {sizes}"
            )
        return struct.Struct("<" + "".join(form for _, form in forms))


try:
    from cuda.bindings import driver
except ImportError:
    driver = None


@dataclass
class _Loaded:
    """A kernel on one device."""

    label: str
    function: Any
    context: Any
    signature: Signature


class _Thread(threading.local):
    """What a thread's launches use again and again: the driver copies all of it."""

    def __init__(self) -> None:
        self.dependent = False
        self.slots = ArgumentSlots()
        self.settings: dict[tuple[tuple[int, int, int], int, bool], Any] = {}


_loaded: dict[tuple[KernelCode, int], _Loaded] = {}
_loading = threading.Lock()
_thread = _Thread()


@contextmanager
def dependent_launches() -> Iterator[None]:
    """Has this thread's launches start early wherever they can, as `launch` says."""
    before, _thread.dependent = _thread.dependent, True
    try:
        yield
    finally:
        _thread.dependent = before


def _launch_on_gpu(
    code: KernelCode,
    index: int,
    grid: Grid,
    block: int,
    arguments: Sequence[Argument],
    dependent: bool,
) -> None:
    kernel = _loaded.get((code, index)) or _load(code, index, _cubin(code, index))
    kernel.signature.write(arguments, _thread.slots)
    dependent = dependent and torch.cuda.is_current_stream_capturing()
    key = (grid, block, dependent)
    settings = _thread.settings.get(key)
    if settings is None:
        settings = _thread.settings[key] = _launch_settings(*key)
    settings.hStream = torch._C._cuda_getCurrentRawStream(index)
    # A new thread has no context, and torch's default stream belongs to the current one.
    elsewhere = int(driver.cuCtxGetCurrent()[1]) != int(kernel.context)
    if elsewhere:
        driver.cuCtxPushCurrent(kernel.context)
    try:
        (result,) = driver.cuLaunchKernelEx(settings, kernel.function, _thread.slots.address, 0)
    finally:
        if elsewhere:
            driver.cuCtxPopCurrent()
    _check(kernel.label, result)


def _launch_settings(grid: tuple[int, int, int], block: int, dependent: bool) -> Any:
    settings = driver.CUlaunchConfig()
    settings.gridDimX, settings.gridDimY, settings.gridDimZ = grid
    settings.blockDimX, settings.blockDimY, settings.blockDimZ = block, 1, 1
    if dependent:
        names = driver.CUlaunchAttributeID
        attribute = driver.CUlaunchAttribute()
        attribute.id = names.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
        attribute.value.programmaticStreamSerializationAllowed = 1
        settings.attrs = [attribute]
        settings.numAttrs = 1
    return settings


def _cubin(code: KernelCode, index: int) -> bytes:
    return compile_code(code, architecture_of(torch.cuda.get_device_capability(index)))


def _load(code: KernelCode, index: int, cubin: bytes) -> _Loaded:
    """Loads a cubin, also where a graph is being captured: this thread's calls are let pass."""
    if driver is None:
        raise KernelError(f"cuda-bindings is missing: {install_command('kernels')}")
    label = code.label
    relaxed = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
    with _loading:
        if (code, index) in _loaded:
            return _loaded[code, index]
        _check(label, *driver.cuInit(0))
        context = _check(label, *driver.cuDevicePrimaryCtxRetain(driver.CUdevice(index)))
        _check(label, *driver.cuCtxPushCurrent(context))
        mode = driver.cuThreadExchangeStreamCaptureMode(relaxed)[1]
        try:
            module = _check(label, *driver.cuModuleLoadData(cubin))
            function = _check(label, *driver.cuModuleGetFunction(module, code.entry.encode()))
        finally:
            driver.cuThreadExchangeStreamCaptureMode(mode)
            driver.cuCtxPopCurrent()
        signature = Signature(label, _parameter_bytes(code, function))
        _loaded[code, index] = _Loaded(label, function, context, signature)
        return _loaded[code, index]


def _parameter_bytes(code: KernelCode, function: Any) -> list[int]:
    """Asks for as many as the source has: to ask for one more is an error that tools report."""
    sizes: list[int] = []
    for place in range(parameter_count(code)):
        result, _, size = driver.cuFuncGetParamInfo(function, place)
        _check(code.label, result)
        sizes.append(size)
    return sizes


def _check(label: str, result: Any, value: Any = None) -> Any:
    """What a call of the driver returns beside its result."""
    if result.value:
        text = driver.cuGetErrorString(result)[1]
        reason = text.decode(errors="replace") if text else "unknown"
        raise KernelError(f"{label}: {result.name} ({reason})")
    return value

"""Launches a kernel on CPU tensors: its threads run by turns (cuda/cpu_threads.h)."""

from __future__ import annotations

import ctypes
import functools
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from spark_prof.ending import temporary_folder
from spark_prof.kernels.errors import KernelError
from spark_prof.kernels.runtime.arguments import Argument
from spark_prof.kernels.runtime.code import KernelCode
from spark_prof.kernels.runtime.cpu_compiler import shared_library
from spark_prof.kernels.runtime.in_flight import KernelsInFlight, LaunchOrder, TensorRange

_MOST_BLOCKS = 2**31 - 1
_MOST_THREADS = 1024
_MOST_SHARED_BYTES = 227 << 10
"""Of any GPU: 9.0 and 10.x (CUDA C++ Programming Guide, compute capabilities)."""
_KINDS = {"p": "a tensor or None", "i": "an int", "f": "a float"}
_ONE_AT_A_TIME = threading.Lock()
"""A library holds the state of one launch."""
_in_flight = KernelsInFlight()


@dataclass(frozen=True)
class _Kernel:
    """A loaded kernel: its entry, and one letter a parameter (p, i or f)."""

    launch: Any
    parameters: str


def run_on_cpu(
    code: KernelCode,
    grid: tuple[int, int, int],
    block: int,
    arguments: Sequence[Argument],
    shared_bytes: int = 0,
    dependent: bool = False,
) -> None:
    """Compiles a kernel's source for the CPU if need be and runs it to its end.

    Args:
        code: the kernel; its source may also be an absolute path.
        arguments: one a parameter; a tensor's address is passed, None as a null pointer.
        dependent: on a GPU it may start before the kernel before it ends; what would then be
            wrong is an error here.

    Raises:
        KernelError: it does not compile, the arguments are not the entry's, its threads wait for
            each other without end, or what it does with memory is wrong (cuda/cpu_checks.h).
    """
    fits = 1 <= min(grid) <= max(grid) <= _MOST_BLOCKS and 1 <= block <= _MOST_THREADS
    if not fits or not 0 <= shared_bytes <= _MOST_SHARED_BYTES:
        raise KernelError(
            f"{code.label}: no launch of {grid} blocks of {block} threads with {shared_bytes} bytes"
        )
    kernel = _kernel(code)
    values = _values(code, kernel.parameters, arguments)
    addresses = (ctypes.c_void_p * len(values))(*map(ctypes.addressof, values))
    tensors = [given for given in arguments if isinstance(given, torch.Tensor)]
    ranges = (TensorRange * len(tensors))(*map(TensorRange.of, tensors))
    order = LaunchOrder()
    with _ONE_AT_A_TIME:
        failure = kernel.launch(
            addresses,
            (ctypes.c_uint32 * 3)(*grid),
            ctypes.c_uint32(block),
            ctypes.c_uint32(shared_bytes),
            ranges,
            ctypes.c_uint32(len(ranges)),
            ctypes.byref(order),
        )
        if failure is not None:
            raise KernelError(f"{code.label}: {failure.decode()}")
        _in_flight.add(code.label, dependent, order, tensors, list(ranges))


@functools.lru_cache(maxsize=1024)
def _kernel(code: KernelCode) -> _Kernel:
    with temporary_folder() as folder:
        file = folder / "kernel.so"
        file.write_bytes(shared_library(code))
        try:
            library = ctypes.CDLL(str(file))  # stays loaded without the file
        except OSError as error:
            raise KernelError(f"{code.label}: its library cannot be loaded: {error}") from None
    library.kernel_launch.restype = library.kernel_parameters.restype = ctypes.c_char_p
    return _Kernel(library.kernel_launch, library.kernel_parameters().decode())


def _values(
    code: KernelCode, parameters: str, arguments: Sequence[Argument]
) -> list[ctypes._SimpleCData[Any]]:
    if len(parameters) != len(arguments):
        raise KernelError(f"{code.label} takes {len(parameters)} arguments, not {len(arguments)}")
    values: list[ctypes._SimpleCData[Any]] = []
    for at, (letter, given) in enumerate(zip(parameters, arguments, strict=True)):
        if letter == "p" and (given is None or isinstance(given, torch.Tensor)):
            if given is not None and given.device.type != "cpu":
                raise KernelError(f"{code.label}: argument {at} is on {given.device}, not the CPU")
            values.append(ctypes.c_void_p(None if given is None else given.data_ptr()))
        elif letter == "i" and isinstance(given, int) and -(2**31) <= given < 2**31:
            values.append(ctypes.c_int(given))
        elif letter == "f" and isinstance(given, float):
            values.append(ctypes.c_float(given))
        else:
            what = repr(given) if isinstance(given, (int, float)) else type(given).__name__
            raise KernelError(f"{code.label}: argument {at} is {what}, not {_KINDS[letter]}")
    return values

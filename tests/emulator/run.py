"""Launches a kernel on CPU tensors: its threads run by turns (cpu_threads.h).

It also finds what a kernel that starts early does to memory that kernels before it still use. On a
GPU a dependent launch may start once all blocks of the kernel before have called
`start_next_kernel`, and everything before is over once it has called `wait_for_previous_kernel`.
The CPU runs kernels one after another and notes what each does before and after that wait.
"""

from __future__ import annotations

import ctypes
import functools
import threading
import weakref
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from spark_prof.ending import temporary_folder
from spark_prof.kernels.kernel_error import KernelError
from spark_prof.kernels.runtime.code import KernelCode
from spark_prof.kernels.runtime.launch import Argument
from tests.emulator.compiler import shared_library

_READ, _WRITTEN, _AFTER_WAIT = 1, 2, 4
"""The bits of `TensorRange.uses`, as in cpu_threads.h."""
_MOST = 16
"""Kernels that are looked back to."""


class TensorRange(ctypes.Structure):
    """The addresses of a tensor and how a kernel used them; `Range` of cpu_threads.h."""

    _fields_ = (("begin", ctypes.c_uint64), ("end", ctypes.c_uint64), ("uses", ctypes.c_uint32))

    @classmethod
    def of(cls, tensor: torch.Tensor) -> TensorRange:
        """From a tensor's first element to its last one."""
        begin = tensor.data_ptr()
        if not tensor.numel():
            return cls(begin, begin)
        steps = zip(tensor.shape, tensor.stride(), strict=True)
        last = sum((size - 1) * stride for size, stride in steps)
        return cls(begin, begin + (last + 1) * tensor.element_size())


class LaunchOrder(ctypes.Structure):
    """How a kernel kept to its neighbours; `Order` of cpu_threads.h."""

    _fields_ = tuple((n, ctypes.c_uint32) for n in ("waits", "starts_next_early"))


@dataclass(frozen=True)
class _Use:
    """A tensor that a kernel used; one that is freed has nothing to fear from its successors."""

    tensor: weakref.ref[torch.Tensor]
    range: TensorRange

    def forbids(self, later: TensorRange) -> bool:
        """Whether a later kernel, before its wait, uses what this use does not allow yet."""
        early = later.uses % _AFTER_WAIT
        mine = self.range.uses % _AFTER_WAIT | self.range.uses // _AFTER_WAIT
        overlap = self.range.begin < later.end and later.begin < self.range.end
        is_written = (early | mine) & _WRITTEN
        return bool(overlap and early and mine and is_written and self.tensor() is not None)


@dataclass(frozen=True)
class _Launched:
    label: str
    uses: list[_Use]


class KernelsInFlight:
    """The kernels that may still run when the next one starts."""

    def __init__(self) -> None:
        self._kernels: deque[_Launched] = deque(maxlen=_MOST)

    def add(
        self,
        label: str,
        dependent: bool,
        order: LaunchOrder,
        tensors: Sequence[torch.Tensor],
        ranges: Sequence[TensorRange],
    ) -> None:
        """Takes in a launch, which may start early if it is dependent.

        It is refused if it then never waits, or reads before it waits what a kernel before it
        writes, or writes then what that one uses.
        """
        before = list(self._kernels) if dependent else []
        if not (dependent and order.starts_next_early):
            self._kernels.clear()
        uses = [_Use(weakref.ref(t), r) for t, r in zip(tensors, ranges, strict=True)]
        self._kernels.append(_Launched(label, uses))
        if dependent and not order.waits:
            raise KernelError(f"{label} may start early and never waits for the kernel before")
        for kernel in before:
            for at, later in enumerate(ranges):
                if any(use.forbids(later) for use in kernel.uses):
                    raise KernelError(
                        f"{label}: its tensor {at} is used too early: {kernel.label} may not be "
                        "through with it before wait_for_previous_kernel"
                    )


_MOST_BLOCKS = 2**31 - 1
_MOST_THREADS = 1024
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
    dependent: bool = False,
) -> None:
    """Compiles a kernel's source for the CPU if need be and runs it to its end.

    A KernelError says that it does not compile, that the arguments are not the entry's, that its
    threads wait for each other without end, or what it does wrong with memory (cpu_checks.h).
    """
    if not (1 <= min(grid) <= max(grid) <= _MOST_BLOCKS and 1 <= block <= _MOST_THREADS):
        raise KernelError(f"{code.label}: no launch of {grid} blocks of {block} threads")
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

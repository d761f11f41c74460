"""Finds what a kernel that starts early does to memory that kernels before it still use.

On a GPU a dependent launch may start once all blocks of the kernel before have called
`start_next_kernel`, and everything before is over once it has called `wait_for_previous_kernel`.
The CPU runs kernels one after another and notes what each does before and after that wait.
"""

from __future__ import annotations

import ctypes
import weakref
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from spark_prof.kernels.errors import KernelError

_READ, _WRITTEN, _AFTER_WAIT = 1, 2, 4
"""The bits of `TensorRange.uses`, as in cuda/cpu_threads.h."""
_MOST = 16
"""Kernels that are looked back to."""


class TensorRange(ctypes.Structure):
    """The addresses of a tensor and how a kernel used them; `Range` of cuda/cpu_threads.h."""

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
    """How a kernel kept to its neighbours; `Order` of cuda/cpu_threads.h."""

    _fields_ = (("waits", ctypes.c_uint32), ("starts_next_early", ctypes.c_uint32))


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
        """Takes in a launch.

        Args:
            dependent: whether it may start before the kernel before it ends.

        Raises:
            KernelError: it may start early, and never waits, or reads before it waits what a
                kernel before it writes, or writes then what that one uses.
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

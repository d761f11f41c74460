"""What an operand of a kernel must be, said in one line where it is not."""

from __future__ import annotations

from functools import cache

import torch

from spark_prof.kernels.errors import KernelError

__all__ = ["check_operand", "multiprocessors"]


def check_operand(
    name: str,
    operand: torch.Tensor,
    shape: tuple[int, ...],
    device: torch.device,
    dtype: torch.dtype = torch.bfloat16,
    rows_apart: bool = False,
) -> None:
    """Refuses an operand that a kernel would misread.

    Args:
        name: what the message calls it.
        operand: the tensor.
        shape: what it must have.
        device: where it must be.
        dtype: what it must be.
        rows_apart: its rows need not follow on each other, but begin at multiples of 16 bytes.

    Raises:
        KernelError: it does not fit.
    """
    if operand.device != device:
        raise KernelError(f"{name} is on {operand.device}, the weights are on {device}")
    if operand.dtype != dtype:
        raise KernelError(f"{name} is {operand.dtype}; it must be {dtype}")
    if tuple(operand.shape) != shape:
        raise KernelError(f"{name} has the shape {tuple(operand.shape)}; it must have {shape}")
    if not rows_apart:
        if not operand.is_contiguous():
            raise KernelError(f"{name} is not contiguous; pass {name}.contiguous()")
        return
    rows = operand.stride(0) * operand.element_size() if shape[0] > 1 else 0
    if operand.stride(1) != 1 or rows % 16 or operand.data_ptr() % 16 or operand.stride(0) < 0:
        raise KernelError(
            f"{name} has strides {operand.stride()} from address {operand.data_ptr():#x}: rows must"
            f" be contiguous and begin at multiples of 16 bytes; pass {name}.contiguous()"
        )


@cache
def multiprocessors(device: torch.device) -> int:
    """How many a GPU has; for the CPU a few, so that blocks have more than one round to do."""
    if device.type != "cuda":
        return 2
    return int(torch.cuda.get_device_properties(device).multi_processor_count)

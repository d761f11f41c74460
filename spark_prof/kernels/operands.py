"""What an operand of a kernel must be, said in one line where it is not; where kernels run."""

from __future__ import annotations

from functools import cache

import torch

from spark_prof.kernels.kernel_error import KernelError
from spark_prof.kernels.runtime.compiler import architecture_of

LARGEST_BATCH = 16
"""Tokens that the dense layers and the experts take at most."""

_MOST_WARPS = 32  # of a block, on all GPUs


def output_for(
    x: torch.Tensor, tokens: int, rows: int, bias: torch.Tensor | None, out: torch.Tensor | None
) -> torch.Tensor:
    """Refuses a bias or an output that does not fit; returns the output, a new one for None."""
    if bias is not None:
        check_operand("bias", bias, (rows,), x.device)
    if out is None:
        return x.new_empty((tokens, rows))
    check_operand("out", out, (tokens, rows), x.device)
    return out


def check_tokens(
    x: torch.Tensor, columns: int, device: torch.device, most: int = LARGEST_BATCH
) -> int:
    """Refuses what is not bfloat16 [M, K], M from 1 to `most`, rows apart or not; returns M."""
    tokens = x.shape[0] if x.ndim == 2 else 0
    if not 1 <= tokens <= most:
        raise KernelError(f"x has the shape {tuple(x.shape)}; this kernel takes 1 to {most} tokens")
    check_operand("x", x, (tokens, columns), device, rows_apart=True)
    return tokens


def token_tiles(tokens: int) -> int:
    """How often the tensor cores' 8 columns take the tokens: TOKEN_TILES in the kernels."""
    return 1 if tokens <= 8 else 2


def check_operand(
    name: str,
    operand: torch.Tensor,
    shape: tuple[int, ...],
    device: torch.device,
    # Its rows need not follow on each other, but begin at multiples of 16 bytes.
    rows_apart: bool = False,
) -> None:
    """Refuses what is not bfloat16 of this shape on this device, as a kernel would misread it."""
    if operand.device != device:
        raise KernelError(f"{name} is on {operand.device}, the weights are on {device}")
    if operand.dtype != torch.bfloat16:
        raise KernelError(f"{name} is {operand.dtype}; it must be {torch.bfloat16}")
    if tuple(operand.shape) != shape:
        raise KernelError(f"{name} has the shape {tuple(operand.shape)}; it must have {shape}")
    refuse_gradient(name, operand)
    if not rows_apart:
        if not operand.is_contiguous():
            raise KernelError(f"{name} is not contiguous; pass {name}.contiguous()")
        return
    rows = operand.stride(0) * operand.element_size() if shape[0] > 1 else 0
    if operand.stride(1) != 1 or rows % 16 or operand.data_ptr() % 16:
        raise KernelError(
            f"{name} has strides {operand.stride()} from address {operand.data_ptr():#x}: rows must"
            f" be contiguous and begin at multiples of 16 bytes; pass {name}.contiguous()"
        )


def stacks_at_a_time(warps: int, split: int) -> int:
    """How many stacks of 16 rows a block works on, `split` of its warps on each."""
    if not 1 <= split <= warps <= _MOST_WARPS or warps % split:
        raise KernelError(
            f"a configuration of {warps} warps, {split} to a stack: give up to {_MOST_WARPS}, and"
            " a divisor of them"
        )
    return warps // split


def refuse_gradient(name: str, operand: torch.Tensor) -> None:
    """Refuses what autograd would find no trace of in the result."""
    if operand.requires_grad and torch.is_grad_enabled():
        raise KernelError(
            f"{name} wants a gradient, which these kernels have none of; call them under"
            " torch.no_grad()"
        )


def check_apart(out: torch.Tensor, x: torch.Tensor) -> None:
    """Refuses a contiguous result that lies where its kernel still reads activations."""
    rows, columns = x.shape
    end = x.data_ptr() + ((rows - 1) * x.stride(0) + columns) * x.element_size()
    if out.data_ptr() < end and x.data_ptr() < out.data_ptr() + out.nbytes:
        raise KernelError("out and x share memory: blocks still read x when others write")


def architecture(device: torch.device) -> str:
    """What kernels are compiled for there, such as sm_90a; cpu for the CPU."""
    if device.type != "cuda":
        return "cpu"
    return architecture_of(torch.cuda.get_device_capability(device))


@cache
def multiprocessors(device: torch.device) -> int:
    """How many a GPU has; for the CPU a few, so that blocks have more than one round to do."""
    if device.type != "cuda":
        return 2
    return int(torch.cuda.get_device_properties(device).multi_processor_count)

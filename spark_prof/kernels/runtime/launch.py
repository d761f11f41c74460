"""Launches a kernel on the GPU where its tensors lie."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from spark_prof.kernels.kernel_error import KernelError
from spark_prof.kernels.runtime.code import KernelCode
from spark_prof.kernels.runtime.gpu import Argument, prepare_on_gpu, run_on_gpu

Grid = tuple[int, int, int]

RUNNERS: dict[str, Callable[[KernelCode, Grid, int, Sequence[Argument], bool], None]] = {}
"""What launches on other devices, by torch's type: the tests run the sources on the CPU."""


def prepare(codes: Sequence[KernelCode], device: torch.device) -> None:
    """Readies kernels for their first launch, such as before a graph is captured.

    On a GPU they are compiled, several at a time, and loaded; elsewhere nothing is done.

    Raises:
        KernelError: one does not compile or load.
    """
    if device.type == "cuda":
        prepare_on_gpu(codes, device)


def launch(
    code: KernelCode,
    grid: Grid,
    block: int,
    arguments: Sequence[Argument],
    dependent: bool = False,
) -> None:
    """Launches a kernel on the device of its tensors, on a GPU on torch's current stream.

    The caller answers for dtypes, shapes and strides: the kernel sees addresses.

    Args:
        arguments: what its parameters get, in order: of a tensor its address, of an int a C int,
            of a float a C float, of None a null pointer.
        dependent: let it start before the kernel before it in the stream ends (programmatic
            dependent launch); it waits for that one itself. Only inside a graph on a GPU.

    Raises:
        KernelError: the tensors lie on several devices or on another kind, the kernel does not
            compile, the arguments do not fit its parameters, or CUDA refuses.
    """
    device: torch.device | None = None
    for argument in arguments:
        if isinstance(argument, torch.Tensor):
            if device is None:
                device = argument.device
            elif argument.device != device:
                raise KernelError(f"{code.label}: tensors on {device} and on {argument.device}")
    if device is None:
        raise KernelError(f"{code.label}: no argument is a tensor, so no device is known")
    if device.type == "cuda":
        run_on_gpu(code, device.index, grid, block, arguments, dependent)
    elif device.type in RUNNERS:
        RUNNERS[device.type](code, grid, block, arguments, dependent)
    else:
        raise KernelError(f"{code.label}: the tensors are on {device}, not on a GPU")

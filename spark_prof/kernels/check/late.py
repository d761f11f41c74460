"""Activations that are written late, by a kernel behind which the one that is checked starts early.

In an engine's graph a kernel may start before the one ahead of it has ended, and what it reads
before it waits may not be written yet. The sources read activations after the wait, but ptxas of
CUDA 13.0 has moved such a load before it, so this is tried with what the machine's own compiler
makes of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from spark_prof.kernels.check.inputs import memory_of
from spark_prof.kernels.runtime.code import KernelCode
from spark_prof.kernels.runtime.launch import launch, prepare

WRITE_LATE = KernelCode("late.cu", "write_late")
_CLOCKS = 100_000
"""Some 50 us, in which every block of the next kernel that there is room for has started."""
_THREADS = 1024
_NAN = 255
"""Of bytes of which each float is a NaN."""


@dataclass(frozen=True)
class LateRows:
    """Memory of an argument with a row for each token, and what it has to hold."""

    memory: torch.Tensor
    values: torch.Tensor  # bytes, a row for each element

    def reverse(self) -> None:
        """Has it hold its elements in reverse from now on; once more puts them back."""
        self.values.copy_(self.values.flip(0))

    def erase(self) -> None:
        """Makes NaN of it."""
        self.memory.fill_(_NAN)

    def write(self) -> None:
        """Launches what writes it late."""
        arguments = self.values, self.memory, self.memory.numel(), _CLOCKS
        launch(WRITE_LATE, (1, 1, 1), _THREADS, arguments)


def late_rows(
    arguments: Sequence[torch.Tensor | None],
    outputs: Sequence[int] = (),  # arguments that a call writes to
) -> list[LateRows]:
    """Those of a call's arguments that hold floats and have a row for each token, each once."""
    x = arguments[0]
    assert x is not None
    prepare([WRITE_LATE], x.device)
    memories = {
        argument.untyped_storage().data_ptr(): (memory_of(argument), argument.itemsize)
        for place, argument in enumerate(arguments)
        if argument is not None and place not in outputs
        if argument.is_floating_point() and argument.ndim == 2 and len(argument) == len(x)
    }
    return [LateRows(memory, memory.clone().view(-1, size)) for memory, size in memories.values()]

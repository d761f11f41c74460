"""The exception of everything under `kernels`."""

from __future__ import annotations

from spark_prof.errors import SparkProfError, one_line


class KernelError(SparkProfError):
    """A kernel cannot be compiled, loaded or launched as asked; one line says why."""

    def __init__(self, message: str) -> None:
        super().__init__(one_line(message))

"""The exception of everything under `kernels`."""

from __future__ import annotations

from spark_prof.errors import SparkProfError, one_line


class KernelError(SparkProfError):
    """A kernel cannot be compiled, loaded or launched as asked; one line says why."""

    def __init__(self, message: str) -> None:
        super().__init__(one_line(message))


class MissingInstructionError(KernelError):
    """The GPU has no instruction that a kernel is made of; one line names those that have."""


def reason(failure: BaseException) -> str:
    """The first line of what went wrong, with its type."""
    kind, lines = type(failure).__name__, str(failure).strip().splitlines()
    return one_line(f"{kind}: {lines[0]}")[:300] if lines else kind

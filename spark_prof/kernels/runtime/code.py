"""What names one compiled kernel: a source file, its entry point and its constants."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

__all__ = ["SOURCES", "KernelCode"]

SOURCES = Path(__file__).resolve().parent.parent / "cuda"
"""The folder of the CUDA C++ sources."""


@dataclass(frozen=True)
class KernelCode:
    """One kernel as it is compiled.

    Attributes:
        source: a file of the folder `cuda`, such as `dense.cu`.
        entry: the name of its `KERNEL`.
        defines: constants of the compilation, as (name, value) in a fixed order.
    """

    source: str
    entry: str
    defines: tuple[tuple[str, int], ...] = ()

    @property
    def label(self) -> str:
        """A name for messages: `dense.cu:dense SPLIT=4 WARPS=8`."""
        return " ".join([f"{self.source}:{self.entry}", *(f"{n}={v}" for n, v in self.defines)])

"""What names one compiled kernel: a source file, its entry point and its constants."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from spark_prof.kernels.kernel_error import KernelError

SOURCES = Path(__file__).resolve().parent.parent / "cuda"


@dataclass(frozen=True)
class KernelCode:
    """One kernel as it is compiled."""

    source: str  # a file of the folder `cuda`, such as `dense.cu`
    entry: str  # the name of its `KERNEL`
    # Constants of the compilation, as (name, value) in a fixed order.
    defines: tuple[tuple[str, int], ...] = ()

    @property
    def label(self) -> str:
        """A name for messages: `dense.cu:dense SPLIT=4 WARPS=8`."""
        return " ".join([f"{self.source}:{self.entry}", *(f"{n}={v}" for n, v in self.defines)])


def parameter_count(code: KernelCode) -> int:
    """How many parameters a kernel has, by its source."""
    text = (SOURCES / code.source).read_text(encoding="utf-8")
    match = re.search(rf"^KERNEL\b[^;{{]*?\b{code.entry}\s*\(([^()]*)\)\s*{{", text, re.MULTILINE)
    if match is None:
        raise KernelError(f"{code.label}: {code.source} has no KERNEL {code.entry}")
    return len([part for part in match[1].split(",") if part.strip()])

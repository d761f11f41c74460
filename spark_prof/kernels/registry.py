"""Every replacement kernel, by name."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches

from spark_prof.errors import CommandError
from spark_prof.kernels.entries.dense import DENSE
from spark_prof.kernels.entries.experts import EXPERTS
from spark_prof.kernels.entries.fused import FUSED
from spark_prof.kernels.entry import ReplacementKernel

KERNELS: tuple[ReplacementKernel, ...] = (*DENSE, *EXPERTS, *FUSED)
"""In the order in which they are listed."""


def find(name: str | None) -> Sequence[ReplacementKernel]:
    """The kernel of that name, or all of them for None.

    Raises:
        CommandError: there is none of that name.
    """
    if name is None:
        return KERNELS
    found = [kernel for kernel in KERNELS if kernel.name == name]
    if not found:
        names = [kernel.name for kernel in KERNELS]
        near = [each for each in names if each.startswith(f"{name}-")]
        near = near or get_close_matches(name, names, 1)
        hint = f"did you mean {' or '.join(near)}?" if near else f"known are {', '.join(names)}"
        raise CommandError(f"there is no kernel {name}; {hint}")
    return found

"""Runs the sources of the package's kernels on CPU tensors, by a C++ compiler, once it is imported.

It finds what a GPU would not tell: races, what nobody has set, memory that is not the kernel's, and
what a kernel that starts early does to memory that kernels before it still use.
"""

from __future__ import annotations

from spark_prof.kernels.runtime import launch
from tests.emulator.run import run_on_cpu

launch.RUNNERS["cpu"] = run_on_cpu

"""The part of a kernel's name that stays when the same model is compiled again."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from spark_prof.analyzers.classify.classifier import spelling
from spark_prof.rules.kernel_names import NAME_LIMIT


@dataclass(frozen=True)
class Changing:
    """One thing in names that differs from compilation to compilation.

    Attributes:
        what: it is.
        pattern: where it stands.
        example: a name that has it.
        stable: what is left of that name.
    """

    what: str
    pattern: re.Pattern[str]
    example: str
    stable: str


CHANGING = (
    Changing(
        "Inductor numbers the kernels of a graph",
        re.compile(r"^(triton_(?:poi|red|per|for|spl|tem|unk)_fused\w*?)_\d+$"),
        "triton_red_fused__to_copy_add_rms_norm_12",
        "triton_red_fused__to_copy_add_rms_norm",
    ),
    Changing(
        "Inductor numbers kernels of C++ and CUTLASS templates",
        re.compile(r"^((?:cpp|cuda|cutlass)_fused\w*?)_\d+$"),
        "cuda_fused_mm_0",
        "cuda_fused_mm",
    ),
    Changing(
        "Triton before 3.0 wrote how its arguments are specialized",
        re.compile(r"^(\w+?)_(?:\d{1,2}(?:de|d|c)){3,64}\d{0,2}$"),
        "fused_moe_kernel_0d1d2d3d4c5de6de7c",
        "fused_moe_kernel",
    ),
    Changing(
        "a hash of what was compiled",
        re.compile(r"^(\w+?)_(?=[0-9a-f]*\d)(?=[0-9a-f]*[a-f])[0-9a-f]{8,64}$"),
        "kernel_cutlass_gemm_9f86d081884c7d65",
        "kernel_cutlass_gemm",
    ),
)
"""What is taken out of names before two recordings are matched; each row's example is its test."""


@lru_cache(maxsize=16384)
def stable_name(name: str) -> str:
    """The name as it would also be after another compilation, in `spelling`'s spelling."""
    name = name[:NAME_LIMIT]
    for each in CHANGING:
        if found := each.pattern.match(name):
            name = found[1]
            break
    return spelling(name).removesuffix("<>")

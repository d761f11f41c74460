"""vLLM's versions as numbers, and which flag does something in which of them."""

from __future__ import annotations

import re

Version = tuple[int, int]
UNKNOWN: Version = (0, 0)
FLAGS_FROM: Version = (0, 22)
"""vLLM 0.22 warns of each older variable with "use --moe-backend" or "use --linear-backend"."""

_OLDER = {
    "moe": "VLLM_USE_FLASHINFER_MOE_FP4=1 with VLLM_FLASHINFER_MOE_BACKEND=throughput",
    "linear": "VLLM_NVFP4_GEMM_BACKEND=flashinfer-cutlass",
}


def version_of(text: str) -> Version:
    """Major and minor number of a version such as 0.26.1.dev3; `UNKNOWN` where there is none."""
    found = re.match(r"v?(\d{1,4})\.(\d{1,4})", text.strip())
    return (int(found[1]), int(found[2])) if found else UNKNOWN


def since(text: str, first: Version) -> bool:
    """Whether a version is that one or later; an unknown one is taken as the newest."""
    found = version_of(text)
    return found == UNKNOWN or found >= first


def backend_flag(kind: str, backend: str, vllm: str) -> str:
    """What asks for a backend in a version of vLLM.

    Args:
        kind: moe or linear.
        backend: as the flag has it, such as flashinfer_cutlass.
        vllm: the version.
    """
    if since(vllm, FLAGS_FROM):
        return f"--{kind}-backend {backend}"
    return _OLDER[kind]

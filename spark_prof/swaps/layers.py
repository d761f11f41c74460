"""What somebody's own kernel is built from, and what it is (`spark_prof.kernels.candidate`)."""

from __future__ import annotations

import os
from importlib.util import find_spec

import torch

from spark_prof.kernels.candidate import (
    Bits,
    Builder,
    ExpertsLayer,
    Layer,
    LinearLayer,
    NormLayer,
    Replacement,
    RouterLayer,
)

__all__ = [
    "Bits",
    "Builder",
    "ExpertsLayer",
    "Layer",
    "LinearLayer",
    "NormLayer",
    "Replacement",
    "RouterLayer",
    "has_triton",
]


def has_triton(x: torch.Tensor) -> bool:
    """Whether Triton runs where a tensor is.

    With TRITON_INTERPRET=1 that is the CPU, to be debugged: slowly, and cut where a GPU rounds to
    bfloat16, so that the check finds a kernel too far off.
    """
    there = x.is_cuda or os.environ.get("TRITON_INTERPRET") == "1"
    return there and find_spec("triton") is not None

"""What somebody's own kernel is built from, and what it is (`spark_prof.kernels.candidate`)."""

from __future__ import annotations

import os
from importlib.util import find_spec

import torch

from spark_prof.kernels.candidate import Bits as Bits
from spark_prof.kernels.candidate import Builder as Builder
from spark_prof.kernels.candidate import ExpertsLayer as ExpertsLayer
from spark_prof.kernels.candidate import Layer as Layer
from spark_prof.kernels.candidate import LinearLayer as LinearLayer
from spark_prof.kernels.candidate import NormLayer as NormLayer
from spark_prof.kernels.candidate import Replacement as Replacement
from spark_prof.kernels.candidate import RouterLayer as RouterLayer


def has_triton(x: torch.Tensor) -> bool:
    """Whether Triton runs where a tensor is.

    With TRITON_INTERPRET=1 that is the CPU, to be debugged: slowly, and cut where a GPU rounds to
    bfloat16, so that the check finds a kernel too far off.
    """
    on_device = x.is_cuda or os.environ.get("TRITON_INTERPRET") == "1"
    return on_device and find_spec("triton") is not None

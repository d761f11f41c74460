"""What somebody's own kernel is built from, and what it is (`spark_prof.kernels.candidate`)."""

from __future__ import annotations

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
]

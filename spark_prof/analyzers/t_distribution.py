"""Quantiles of Student's t."""

from __future__ import annotations

import math
from statistics import NormalDist


def student_quantile(probability: float, free: int) -> float:
    """A quantile of Student's t, right to 1 % at 2 degrees of freedom, to 0.1 % from 4, exact at 1.

    Abramowitz and Stegun, Handbook of Mathematical Functions, 26.7.5.

    Args:
        probability: between 0.5 and 1.
        free: degrees of freedom, at least 1.
    """
    if free == 1:
        return math.tan(math.pi * (probability - 0.5))
    z = NormalDist().inv_cdf(probability)
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return z + sum(term * float(free) ** -power for power, term in enumerate(terms, start=1))

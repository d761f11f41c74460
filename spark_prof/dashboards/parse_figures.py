"""Reads figures that `formats` wrote, so that a table can be sorted by what they say."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence

from spark_prof.dashboards.formats import MISSING

_FIGURE = re.compile(r"([<>]?)([-+]?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?)(?: ?([A-Za-z%]+)(/s)?)?")
_UNITS: Mapping[str, float] = {
    "ns": 1e-3, "us": 1.0, "ms": 1e3, "s": 1e6,
    "B": 1.0, "KiB": 2.0**10, "MiB": 2.0**20, "GiB": 2.0**30, "TiB": 2.0**40,
    "kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12,
    "%": 1.0, "x": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12,
    "KFLOP": 1e3, "MFLOP": 1e6, "GFLOP": 1e9, "TFLOP": 1e12, "PFLOP": 1e15,
}  # fmt: skip
"""What one of each unit is in the smallest of its kind."""


def value_of(text: str) -> float | None:
    """What a figure says, in the smallest unit of its kind; NaN for none, None for another text.

    What is below a figure, as in <0.1 %, counts as a little closer to nothing than that.
    """
    if text in ("", MISSING):
        return math.nan
    found = _FIGURE.fullmatch(text)
    if found is None or (found[3] or "%") not in _UNITS:
        return None
    value = float(found[2].replace(",", "")) * _UNITS[found[3] or "%"]
    return 0.99 * value if found[1] else value


def figures_of(texts: Sequence[str]) -> list[float] | None:
    """What each figure of a column says; None where one is no figure, or all are missing."""
    values = [value_of(text) for text in texts]
    known = [value for value in values if value is not None]
    if len(known) < len(values) or all(map(math.isnan, known)):
        return None
    return known

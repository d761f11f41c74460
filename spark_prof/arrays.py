"""Types of NumPy arrays, and times that add up to the same number in any order."""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

Int64s = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]
Rows = npt.NDArray[Any]

_PER_US = 2.0**24
_Us = TypeVar("_Us", float, Floats)


def exact(us: _Us) -> _Us:
    """Times in us as multiples of 2**-24, a sixteenth of a picosecond.

    Of these float64 adds up nine minutes without rounding, so that parts make the same whole in
    whatever order they are added.
    """
    rounded: _Us = np.rint(us * _PER_US) / _PER_US
    return float(rounded) if isinstance(us, float) else rounded

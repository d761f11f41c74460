"""How well text stands out."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Vector = npt.NDArray[np.float64]

_LUMINANCE = np.array([0.2126729, 0.7151522, 0.0721750])  # of linear RGB, IEC 61966-2-1


def _linear(colour: str) -> Vector:
    encoded = np.array([int(colour[place : place + 2], 16) for place in (1, 3, 5)]) / 255
    return np.where(encoded <= 0.04045, encoded / 12.92, ((encoded + 0.055) / 1.055) ** 2.4)


def contrast(one: str, other: str) -> float:
    """The contrast ratio of WCAG 2.2 of two colours such as #1c2024."""
    darker, lighter = sorted(float(_LUMINANCE @ _linear(colour)) for colour in (one, other))
    return (lighter + 0.05) / (darker + 0.05)

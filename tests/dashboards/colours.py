"""How far apart two colours look, also to colour-blind readers, and how well text stands out."""

from __future__ import annotations

from collections.abc import Mapping
from math import atan2, cos, degrees, exp, hypot, radians, sin, sqrt

import numpy as np
import numpy.typing as npt

Vector = npt.NDArray[np.float64]

VISIONS: Mapping[str, Vector] = {
    "normal": np.eye(3),
    "protanopia": np.array(
        [
            [0.152286, 1.052583, -0.204868],
            [0.114503, 0.786281, 0.099216],
            [-0.003882, -0.048116, 1.051998],
        ]
    ),
    "deuteranopia": np.array(
        [
            [0.367322, 0.860646, -0.227968],
            [0.280085, 0.672501, 0.047413],
            [-0.011820, 0.042940, 0.968881],
        ]
    ),
    "tritanopia": np.array(
        [
            [1.255528, -0.076749, -0.178779],
            [-0.078411, 0.930809, 0.147602],
            [0.004733, 0.691367, 0.303900],
        ]
    ),
}
"""What each makes of linear RGB.

Machado, Oliveira, Fernandes, "A Physiologically-based Model for Simulation of Color Vision
Deficiency", IEEE TVCG 15 (2009), doi:10.1109/TVCG.2009.113, severity 1.0.
"""

# IEC 61966-2-1 to CIE XYZ; then divided by the white of D65.
_TO_XYZ = np.array(
    [
        [0.4124564, 0.3575761, 0.1804375],
        [0.2126729, 0.7151522, 0.0721750],
        [0.0193339, 0.1191920, 0.9503041],
    ]
)
_WHITE = np.array([0.95047, 1.0, 1.08883])


def _linear(colour: str) -> Vector:
    encoded = np.array([int(colour[place : place + 2], 16) for place in (1, 3, 5)]) / 255
    return np.where(encoded <= 0.04045, encoded / 12.92, ((encoded + 0.055) / 1.055) ** 2.4)


def contrast(one: str, other: str) -> float:
    """The contrast ratio of WCAG 2.2 of two colours such as #1c2024."""
    darker, lighter = sorted(float(_TO_XYZ[1] @ _linear(colour)) for colour in (one, other))
    return (lighter + 0.05) / (darker + 0.05)


def lab(colour: str, vision: str = "normal") -> Vector:
    """CIE L*a*b* of a colour as that vision sees it."""
    seen = _TO_XYZ @ np.clip(VISIONS[vision] @ _linear(colour), 0, 1) / _WHITE
    f = np.where(seen > 216 / 24389, np.cbrt(seen), (24389 / 27 * seen + 16) / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def difference(one: Vector, other: Vector) -> float:
    """CIEDE2000 of two colours; from about 10 on they are different at a glance.

    After Sharma, Wu, Dalal, "The CIEDE2000 Color-Difference Formula", Color Res. Appl. 30 (2005).
    """
    (l1, a1, b1), (l2, a2, b2) = map(list, (one, other))
    mean = (hypot(a1, b1) + hypot(a2, b2)) / 2
    grow = 1 + 0.5 * (1 - sqrt(mean**7 / (mean**7 + 25**7)))
    c1, c2 = hypot(grow * a1, b1), hypot(grow * a2, b2)
    h1, h2 = (degrees(atan2(b, grow * a)) % 360 for a, b in ((a1, b1), (a2, b2)))
    turn = (h2 - h1 + 180) % 360 - 180 if c1 * c2 else 0.0
    hue = (h1 + turn / 2) % 360 if c1 * c2 else h1 + h2
    lightness, chroma = (l1 + l2) / 2, (c1 + c2) / 2
    weight = (
        1
        - 0.17 * cos(radians(hue - 30))
        + 0.24 * cos(radians(2 * hue))
        + 0.32 * cos(radians(3 * hue + 6))
        - 0.20 * cos(radians(4 * hue - 63))
    )
    off = (lightness - 50) ** 2
    d_l = (l2 - l1) / (1 + 0.015 * off / sqrt(20 + off))
    d_c = (c2 - c1) / (1 + 0.045 * chroma)
    d_h = 2 * sqrt(c1 * c2) * sin(radians(turn / 2)) / (1 + 0.015 * chroma * weight)
    rotation = 2 * sqrt(chroma**7 / (chroma**7 + 25**7))
    rotation *= -sin(radians(60 * exp(-(((hue - 275) / 25) ** 2))))
    return sqrt(d_l**2 + d_c**2 + d_h**2 + rotation * d_c * d_h)

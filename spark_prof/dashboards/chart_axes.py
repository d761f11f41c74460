"""Axes of time: ticks in the unit in which they have few digits."""

from __future__ import annotations

import math

_FEWEST = 4
_FACTORS = ((1, 2, 5), (1, 1.5, 2, 3, 5, 7), (1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8))
_UNITS = ((1e6, "s"), (1e3, "ms"), (1.0, "us"))


def time_ticks(most_us: float, number: int = 5, least_us: float = 0.0) -> dict[str, object]:
    """Ticks of an axis of microseconds, as plotly's axes take them.

    Args:
        most_us: where the axis ends.
        number: of ticks, about.
        least_us: where it begins.
    """
    span = most_us - least_us
    if not math.isfinite(span) or span <= 0:
        return {"tickvals": [0.0], "ticktext": ["0 us"], "tickangle": 0}
    rough = span / number
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= 0.999 * rough)
    unit, name = next((u, n) for u, n in _UNITS if most_us >= u or u == 1.0)
    first = math.ceil(least_us / step - 1e-9)
    values = [step * place for place in range(first, math.floor(most_us / step + 1e-9) + 1)]
    texts = [f"{float(f'{value / unit:.6g}'):,g}" for value in values]
    # On a phone there is no room for the unit behind every number.
    texts[-1] += f" {name}"
    return {"tickmode": "array", "tickvals": values, "ticktext": texts, "tickangle": 0}


def logarithmic_time_ticks(low: float, high: float) -> dict[str, object]:
    """Range and ticks of an axis that has decimal logarithms of microseconds.

    Args:
        low: logarithm where it begins.
        high: where it ends.
    """
    powers = range(math.floor(low), math.ceil(high) + 1)
    for factors in _FACTORS:
        values = [factor * 10.0**power for power in powers for factor in factors]
        values = [value for value in values if low <= math.log10(value) <= high]
        if len(values) >= _FEWEST:
            break
    else:
        values = [float(f"{10 ** (low + (high - low) * n / 4):.4g}") for n in range(5)]
    return {
        "range": [low, high],
        "tickvals": [math.log10(value) for value in values],
        "ticktext": [_short(value) for value in values],
        "tickangle": 0,
    }


def _short(us: float) -> str:
    unit, name = next((u, n) for u, n in _UNITS if us >= u or u == 1.0)
    return f"{us / unit:g} {name}"

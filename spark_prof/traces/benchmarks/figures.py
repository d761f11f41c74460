"""Figures of a load generator's result by where they stand and in which unit.

What is not there, of another type, negative, endless or NaN was not measured, and is None.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from math import nan
from typing import Any

from spark_prof.traces.benchmarks.load_test import Latency

_LARGEST = 1e15
"""No duration in us, rate or count is larger: 1e15 us are 31 years."""

_MOST_NS = 1 << 62
_US = {"ns": 1e-3, "us": 1.0, "µs": 1.0, "ms": 1e3, "s": 1e6, "sec": 1e6}
_TEXTS = ("model", "label")
_COUNTS = ("concurrency", "completed", "failed", "input_tokens", "output_tokens", "chunks")
_LATENCIES = ("ttft", "tpot", "itl", "e2e")


def figure(value: Any, factor: float = 1.0) -> float | None:
    """A duration, rate or share, in another unit."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    scaled = value * factor if 0 <= value <= _LARGEST else nan
    return float(scaled) if 0 <= scaled <= _LARGEST else None


def whole(value: Any) -> int | None:
    """A number of things."""
    known = figure(value)
    return None if known is None else round(known)


def column(found: Any, path: str, factor: float = 1.0) -> list[float]:
    """The figures of a list, without those that were not measured."""
    values = at(found, path)
    listed = values if isinstance(values, list) else []
    return [known for value in listed if (known := figure(value, factor)) is not None]


def at(found: Any, path: str) -> Any:
    """Whatever stands at a path such as ``metrics.request_totals.errored``."""
    for name in path.split("."):
        found = found.get(name) if isinstance(found, dict) else None
    return found


def fields_of(found: Any, places: Mapping[str, str], statistics: str = "") -> dict[str, Any]:
    """The fields of a `BenchmarkRun` or `Request` that are known.

    Args:
        places: the path of each field and, of a time, a blank and its unit; ``*`` is the unit that
            stands beside it as `unit`. Of several places, with | between them, the first that
            holds something counts. In that of a latency {} stands for the name of a statistic.
        statistics: the names of mean, median, p90, p99 and std.
    """
    known = {}
    for field, several in places.items():
        for place in several.split("|"):
            path, _, unit = place.partition(" ")
            value = _field(found, field, path, unit, statistics)
            if value is not None:
                known[field] = value
                break
    return known


def _field(found: Any, field: str, path: str, unit: str, statistics: str) -> Any:
    if unit == "*":
        unit = str(at(found, f"{path.rpartition('.')[0]}.unit"))
    if field in _LATENCIES:
        mean, median, p90, p99, std = (
            figure(at(found, path.format(name)), _US.get(unit, nan)) for name in statistics.split()
        )
        # Zeros are of a run in which nothing was measured.
        return Latency(mean, median, p90, p99, std) if mean or median else None
    value = at(found, path)
    if field in _TEXTS:
        value = value[0] if isinstance(value, list) and value else value
        return value if isinstance(value, str) else None
    if field == "gaps_us":
        return tuple(column(found, path, _US.get(unit, nan))) if isinstance(value, list) else None
    if field == "start_ns":
        return moment_ns(value, unit)
    if field in _COUNTS:
        return whole(value)
    return figure(value, _US.get(unit, nan) if unit else 1.0)


def moment_ns(value: Any, unit: str) -> int | None:
    """A moment on some clock, in s, ns or as a date with its time zone, in whole ns."""
    if isinstance(value, str):
        return _date_ns(value)
    if unit == "ns":
        return value if isinstance(value, int) and 0 < value < _MOST_NS else None
    known = figure(value)
    if known is None or known > _MOST_NS / 1e9:
        return None
    # Without losing the digits of a float of ns.
    return int(known) * 1_000_000_000 + round((known - int(known)) * 1e9)


def _date_ns(text: str) -> int | None:
    try:
        date = datetime.fromisoformat(text)
        seconds = int(date.timestamp()) if date.tzinfo is not None else 0
    except (ValueError, OverflowError):
        return None
    return seconds * 1_000_000_000 + date.microsecond * 1000 if seconds > 0 else None

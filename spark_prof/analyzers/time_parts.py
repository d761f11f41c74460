"""The times of a report, each with its parts: what must add up, and what cannot be negative."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from spark_prof.analyzers.findings.naming import short_name
from spark_prof.analyzers.model import Report
from spark_prof.analyzers.views.waterfall import waterfall_of

_ROUNDING = 1e-9
"""Relative error of a sum of a million float64 numbers, with room to spare."""
_NS = 1e-3
"""Times are whole nanoseconds: each term of a sum may be off by as much, in us."""
_TIMES_OF_STEPS = ("step_us", "kernels_us", "union_us", "copies_us", "overlap_us", "gap_us")


@dataclass(frozen=True)
class Whole:
    """A time and what it consists of, in us.

    Attributes:
        where: its name in the report.
        key: the table of the report, and which row of it.
        us: the time.
        terms: what adds up to it.
        times: everything in it that is a time, by name.
    """

    where: str
    key: tuple[object, ...]
    us: float
    terms: Sequence[float]
    times: Mapping[str, float]

    @property
    def adds_up(self) -> bool:
        """Whether the terms make the time, within a nanosecond a term."""
        largest = max(abs(self.us), sum(map(abs, self.terms)))
        return same(sum(self.terms), self.us, len(self.terms), largest)

    def negative(self, longest_us: float) -> dict[str, float]:
        """The times below zero by more than rounding in a run that took so long."""
        return {name: us for name, us in self.times.items() if us < -_tolerance(1, longest_us)}


def wholes_of(report: Report, kernels_us: float) -> Iterator[Whole]:
    """Each time of a report that has parts; the residual is no time, but what the parts lack.

    Args:
        report: the report.
        kernels_us: of all kernels.

    >>> [whole.where for whole in wholes_of(report, 812.5)]  # doctest: +SKIP
    ['books: all', 'tokens: decode', 'components', 'layers', 'kernels', 'waterfall']
    """
    for b in report.books:
        terms = [b.kernels_us, b.copies_us, -b.overlap_us, b.gap_us, b.residual_us]
        times = {name: float(getattr(b, name)) for name in _TIMES_OF_STEPS}
        yield Whole(f"books: {b.phase}", ("books", b.phase), b.step_us, terms, times)
    for t in report.tokens:
        times = {r.name: min(r.charged_us, r.summed_us, r.alone_us) for r in t.rows}
        terms = [r.charged_us for r in t.rows]
        key = ("tokens", t.phase, t.batch_size)
        yield Whole(f"tokens: {t.phase}", key, t.step_us, terms, times)
    tables = {
        "components": [(row.name, row.us) for row in report.components],
        "layers": [(f"{row.layer}, {row.component}", row.us) for row in report.layers],
        "kernels": [(short_name(row.name), row.us) for row in report.kernels],
    }
    for name, rows in tables.items():
        yield _table(name, name, kernels_us, rows)
    found = waterfall_of(report)
    parts = [(part.component or part.kind, part.us) for part in found.parts]
    yield _table("waterfall", "floor", found.us, parts)


def merged_us(kernels: pd.DataFrame) -> float:
    """Time in which at least one kernel ran.

    Args:
        kernels: start_ns and end_ns by start.
    """
    start, end = kernels["start_ns"].to_numpy(), kernels["end_ns"].to_numpy()
    if not len(start):
        return 0.0
    reached = np.maximum.accumulate(end)
    idle = np.maximum(start[1:] - reached[:-1], 0).sum()
    return float(reached[-1] - start[0] - idle) / 1e3


def same(a: float, b: float, terms: int = 1, largest: float = 0.0) -> bool:
    """Whether two times are equal but for rounding, that of a sum of so many terms."""
    return abs(a - b) <= _tolerance(terms, max(largest, abs(a), abs(b)))


def _tolerance(terms: int, largest_us: float) -> float:
    return _NS * terms + _ROUNDING * largest_us


def _table(where: str, key: str, us: float, rows: Sequence[tuple[str, float]]) -> Whole:
    least: dict[str, float] = {}
    for name, own in rows:
        least[name] = min(own, least.get(name, own))
    return Whole(where, (key,), us, [own for _, own in rows], least)

"""The machine code of a report's kernels and what contradicts their names, each with its time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from spark_prof.analyzers.classify.evidence import Evidence
from spark_prof.analyzers.classify.model import CodeRow, Conflict
from spark_prof.analyzers.model import KernelRow


def code_of(evidence: Evidence, kernels: Sequence[KernelRow]) -> tuple[CodeRow, ...]:
    """The machine code of the kernels, the most expensive first.

    Where several pieces have a kernel's name, which of them ran is unknown: each has all its time.
    """
    us, decode_us = _times(kernels)
    rows = (
        replace(row, us=us[row.name], decode_us=decode_us[row.name]) for row in evidence.codes(us)
    )
    return tuple(sorted(rows, key=lambda row: -row.us))


def conflicts_of(evidence: Evidence, kernels: Sequence[KernelRow]) -> tuple[Conflict, ...]:
    """The kernels whose names contradict better evidence, the most expensive first."""
    us, _ = _times(kernels)
    found = (replace(conflict, us=us[conflict.name]) for conflict in evidence.conflicts(us))
    return tuple(sorted(found, key=lambda conflict: -conflict.us))


def _times(kernels: Sequence[KernelRow]) -> tuple[dict[str, float], dict[str, float]]:
    us: dict[str, float] = {}
    decode_us: dict[str, float] = {}
    for row in kernels:
        us[row.name] = us.get(row.name, 0.0) + row.us
        decode_us[row.name] = decode_us.get(row.name, 0.0) + row.decode_us
    return us, decode_us

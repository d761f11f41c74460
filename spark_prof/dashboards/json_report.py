"""Writes a report as the JSON that other people's scripts read: keys may be added, none goes.

Times are microseconds and shares are fractions of 1. A figure that does not exist is null, never
NaN, and the names are those of the trace, unchanged.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import asdict
from numbers import Integral, Real
from typing import Any

from spark_prof.analyzers.client_tokens import beside_clients
from spark_prof.analyzers.clients.model import ClientRow
from spark_prof.analyzers.counters.model import Counters
from spark_prof.analyzers.model import Report
from spark_prof.analyzers.roofline.model import Roofline
from spark_prof.analyzers.shapes.model import Shapes
from spark_prof.analyzers.step_accounting import Books, Spread

SCHEMA = 1
"""Raised when a key changes its meaning or goes; new keys do not raise it."""

_NO_SPREAD = {"median": None, "p99": None, "mean": None}


def render(report: Report) -> str:
    """Writes the report as JSON, the same text for the same report."""
    document = {
        "schema": SCHEMA,
        "run": asdict(report.run),
        "gpu": asdict(report.gpu),
        "steps": _steps(report),
        "time": _time(report),
        "books": [
            asdict(entry) | {"busy_us": entry.busy_us, "residual_percent": entry.residual_percent}
            for entry in report.books
        ],
        "coverage": asdict(report.coverage),
        "components": [asdict(row) for row in report.components],
        "layers": [asdict(row) for row in report.layers],
        "kernels": [asdict(row) for row in report.kernels],
        "machine_code": [asdict(row) for row in report.machine_code],
        "conflicts": [asdict(row) for row in report.conflicts],
        "tokens": [asdict(ledger) for ledger in report.tokens],
        "client_tokens": [asdict(row) for row in beside_clients(report.tokens, report.clients)],
        "copies": asdict(report.copies),
        "shapes": _shapes(report.shapes),
        "conversions": asdict(report.conversions),
        "modules": [asdict(row) for row in report.modules],
        "audit": asdict(report.audit) if report.audit else None,
        "ranks": [asdict(row) for row in report.ranks],
        "collectives": asdict(report.collectives),
        "overhead": [asdict(row) for row in report.overhead],
        "counters": _counters(report.counters),
        "markers": [asdict(row) for row in report.markers],
        "roofline": _roofline(report.roofline),
        "clients": client_rows(report.clients),
        "answers": [asdict(row) for row in report.answers],
        "findings": [asdict(found) for found in report.findings],
        "notes": list(report.notes),
        "invariants": [asdict(row) for row in report.invariants],
    }
    return write(document)


def client_rows(rows: Iterable[ClientRow]) -> list[dict[str, Any]]:
    """The runs of load generators, each comparison with its difference."""
    return [
        asdict(row)
        | {"comparisons": [asdict(c) | {"difference": c.difference} for c in row.comparisons]}
        for row in rows
    ]


def write(document: dict[str, Any] | list[Any]) -> str:
    """Writes a document as JSON that says nothing that JSON can't."""
    # ASCII only: half of a surrogate pair in a kernel's name could not be written as UTF-8.
    return json.dumps(_finite(document), indent=2, allow_nan=False) + "\n"


def _steps(report: Report) -> dict[str, Any]:
    values = asdict(report.steps)
    spreads = [name for name in values if name.endswith("_us")]
    return values | {name: _spread(getattr(report.steps, name)) for name in spreads}


def _spread(spread: Spread | None) -> dict[str, Any]:
    return asdict(spread) if spread else dict(_NO_SPREAD)


def _counters(counters: Counters | None) -> dict[str, Any] | None:
    if counters is None:
        return None
    value = asdict(counters)
    for batch, rows in zip(counters.batches, value["batches"], strict=True):
        for row, written in zip(batch.weights, rows["weights"], strict=True):
            written["ratio"] = row.ratio
    return value


def _shapes(shapes: Shapes | None) -> dict[str, Any] | None:
    if shapes is None:
        return None
    value = asdict(shapes)
    for row, written in zip(shapes.rows, value["rows"], strict=True):
        written |= {"us_per_call": row.us_per_call, "tile_waste": row.tile_waste}
    return value


def _roofline(roofline: Roofline | None) -> dict[str, Any] | None:
    if roofline is None:
        return None
    value = asdict(roofline)
    for phase, written in zip(roofline.phases, value["phases"], strict=True):
        written["of_floor"] = phase.of_floor
    value["ceilings"]["peaks"] = dict(roofline.ceilings.peaks)
    return value


def _time(report: Report) -> dict[str, float | None]:
    whole: Books | None = report.books[0] if report.books else None
    return {
        "sum_us": whole.kernels_us if whole else sum(row.us for row in report.components),
        "union_us": whole.union_us if whole else None,
        "wall_us": report.wall_us,
        "busy_us": whole.busy_us if whole else None,
        "copies_us": whole.copies_us if whole else report.copies.us,
        "gap_us": whole.gap_us if whole else None,
        "overlap_us": whole.overlap_us if whole else None,
        "step_us": whole.step_us if whole else None,
        "residual_us": whole.residual_us if whole else None,
        "residual_percent": whole.residual_percent if whole else None,
        "engine_us": whole.engine_us if whole else None,
    }


def _finite(value: Any) -> Any:
    """Replaces what JSON can't say by null, and sheds the noise of binary fractions."""
    if isinstance(value, dict):
        return {key: _finite(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(entry) for entry in value]
    # By their abstract kind, because a table's figures may still be numpy's.
    if isinstance(value, Integral) and not isinstance(value, bool):
        return int(value)
    if isinstance(value, Real) and not isinstance(value, bool):
        return round(float(value), 6) if math.isfinite(value) else None
    return value

"""Runs of load generators as the tables `clients` and `requests` of a bundle, and back.

The gaps between single chunks are not kept; how many chunks there were is.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import Any

import pandas as pd
import pyarrow as pa

from spark_prof.traces.benchmarks.load_test import (
    BenchmarkResult,
    BenchmarkRun,
    Latency,
    Request,
)
from spark_prof.traces.bundle import Bundle
from spark_prof.traces.tables import STATISTICS, TABLES, Column

CLIENTS_RANK = 0
"""The rank whose files hold both tables."""

_LATENCIES = ("ttft", "tpot", "itl", "e2e")


def client_frames(result: BenchmarkResult, first_run: int) -> dict[str, pd.DataFrame]:
    """The rows that a result adds to the tables `clients` and `requests`."""
    runs = list(enumerate(result.runs, first_run))
    clients = [_client(run) | {"run": number, "source": result.source} for number, run in runs]
    requests = [vars(request) | {"run": n} for n, run in runs for request in run.requests]
    return {"clients": _frame("clients", clients), "requests": _frame("requests", requests)}


def imported_runs(bundle: Bundle) -> tuple[BenchmarkRun, ...]:
    """The runs that were imported into a bundle, without the gaps of their requests."""
    clients = bundle.frame("clients", CLIENTS_RANK)
    if clients.empty:
        return ()
    requests = dict(list(bundle.frame("requests", CLIENTS_RANK).groupby("run")))
    return tuple(_run(row, requests.get(row["run"])) for row in _rows("clients", clients))


def _client(run: BenchmarkRun) -> dict[str, Any]:
    row = vars(run) | {"notes": "\n".join(run.notes)}
    for name in _LATENCIES:
        latency: Latency = getattr(run, name)
        row |= {f"{name}_{s}_us": getattr(latency, s) for s in STATISTICS}
        row[f"{name}_derived"] = latency.derived
    return row


def _run(row: Mapping[str, Any], requests: pd.DataFrame | None) -> BenchmarkRun:
    found = {item.name: row[item.name] for item in fields(BenchmarkRun) if item.name in row}
    for name in _LATENCIES:
        figures = {s: row[f"{name}_{s}_us"] for s in STATISTICS}
        found[name] = Latency(**figures, derived=row[f"{name}_derived"])
    found["notes"] = tuple(filter(None, row["notes"].split("\n")))
    rows = _rows("requests", requests.drop(columns="run")) if requests is not None else ()
    return BenchmarkRun(**found, requests=tuple(Request(**request) for request in rows))


def _frame(table: str, rows: list[dict[str, Any]]) -> pd.DataFrame:
    columns = TABLES[table].columns
    cells = [[_stored(column, row[column.name]) for column in columns] for row in rows]
    return pd.DataFrame(cells, columns=[column.name for column in columns])


def _stored(column: Column, value: Any) -> Any:
    """A value as the table has it, with what stands there for one that is not known."""
    if isinstance(value, str):
        # Without halves of surrogate pairs, which no file can hold.
        return value.encode("utf-8", "replace").decode("utf-8")
    if value is not None:
        return value
    if pa.types.is_floating(column.type):
        return math.nan
    return 0 if column.name.endswith("_ns") else -1


def _rows(table: str, frame: pd.DataFrame) -> Iterator[dict[str, Any]]:
    """The rows with Python's own values, None for one that is not known."""
    columns = [column for column in TABLES[table].columns if column.name in frame]
    for values in zip(*(frame[column.name].tolist() for column in columns), strict=True):
        yield {c.name: _known(c, value) for c, value in zip(columns, values, strict=True)}


def _known(column: Column, value: Any) -> Any:
    if pa.types.is_floating(column.type):
        return value if math.isfinite(value) else None
    if pa.types.is_integer(column.type):
        return value if value > 0 or not (value or column.name.endswith("_ns")) else None
    return value

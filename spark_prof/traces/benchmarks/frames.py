"""Runs of load generators as the tables `clients` and `requests` of a bundle, and back.

The gaps between single chunks are not kept; how many chunks there were is.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import pandas as pd

from spark_prof.traces.benchmarks.load_test import (
    CLOCKS,
    COUNTS,
    FIGURES,
    TEXTS,
    BenchmarkResult,
    BenchmarkRun,
    Latency,
    Request,
    given_latency,
)
from spark_prof.traces.bundle import Bundle
from spark_prof.traces.tables import TABLES

CLIENTS_RANK = 0
"""The rank whose files hold both tables."""

_LATENCIES = ("ttft", "tpot", "itl", "e2e")
_STATISTICS = ("mean", "median", "p90", "p99", "std")
_TIMES = ("start_ns", "local_end_ns")
_REQUEST_COUNTS = ("input_tokens", "output_tokens", "chunks")


def client_frames(result: BenchmarkResult, first_run: int = 0) -> dict[str, pd.DataFrame]:
    """The rows that a result adds to the tables `clients` and `requests`."""
    runs = list(enumerate(result.runs, first_run))
    clients = [_client(number, result.source, run) for number, run in runs]
    requests = [_request(number, request) for number, run in runs for request in run.requests]
    return {
        "clients": pd.DataFrame(clients, columns=TABLES["clients"].schema.names),
        "requests": pd.DataFrame(requests, columns=TABLES["requests"].schema.names),
    }


def imported_runs(bundle: Bundle) -> tuple[BenchmarkRun, ...]:
    """The runs that were imported into a bundle, without the gaps of their requests."""
    clients = bundle.frame("clients", CLIENTS_RANK)
    if clients.empty:
        return ()
    requests = dict(list(bundle.frame("requests", CLIENTS_RANK).groupby("run")))
    return tuple(_run(row, requests.get(row["run"])) for row in _rows(clients))


def _client(number: int, source: str, run: BenchmarkRun) -> dict[str, Any]:
    row: dict[str, Any] = {"run": number, "source": _text(source), "notes": "\n".join(run.notes)}
    row["itl_per_token"] = run.itl_per_token
    row |= {name: _text(getattr(run, name)) for name in TEXTS}
    row |= {name: getattr(run, name) or 0 for name in _TIMES}
    row |= {name: _or(getattr(run, name), -1) for name in COUNTS}
    row |= {name: _or(getattr(run, name), math.nan) for name in FIGURES}
    for name in _LATENCIES:
        latency: Latency = getattr(run, name)
        row |= {f"{name}_{s}_us": _or(getattr(latency, s), math.nan) for s in _STATISTICS}
        row[f"{name}_derived"] = latency.derived
    return row


def _request(number: int, request: Request) -> dict[str, Any]:
    return {
        "run": number,
        "start_ns": request.start_ns or 0,
        "ttft_us": _or(request.ttft_us, math.nan),
        "e2e_us": _or(request.e2e_us, math.nan),
        "failed": request.failed,
    } | {name: _or(getattr(request, name), -1) for name in _REQUEST_COUNTS}


def _run(row: Mapping[str, Any], requests: pd.DataFrame | None) -> BenchmarkRun:
    found: dict[str, Any] = {name: row[name] for name in TEXTS}
    found |= {name: row[name] or None for name in _TIMES}
    found |= {name: row[name] if row[name] >= 0 else None for name in COUNTS}
    found |= {name: _known(row[name]) for name in FIGURES}
    for name in _LATENCIES:
        figures = (_known(row[f"{name}_{s}_us"]) for s in _STATISTICS)
        found[name] = replace(given_latency(figures), derived=row[f"{name}_derived"])
    if found["clock"] not in CLOCKS:
        found["clock"] = "none"
    notes = tuple(filter(None, row["notes"].split("\n")))
    found["itl_per_token"] = bool(row["itl_per_token"])
    rows = () if requests is None else tuple(map(_request_of, _rows(requests)))
    return BenchmarkRun(**found, requests=rows, notes=notes)


def _request_of(row: Mapping[str, Any]) -> Request:
    input_tokens, output_tokens, chunks = (
        row[name] if row[name] >= 0 else None for name in _REQUEST_COUNTS
    )
    return Request(
        start_ns=row["start_ns"] or None,
        ttft_us=_known(row["ttft_us"]),
        e2e_us=_known(row["e2e_us"]),
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        chunks=chunks,
        failed=bool(row["failed"]),
    )


def _rows(frame: pd.DataFrame) -> Iterator[dict[str, Any]]:
    """The rows with Python's own numbers."""
    names = list(frame.columns)
    for values in zip(*(frame[name].tolist() for name in names), strict=True):
        yield dict(zip(names, values, strict=True))


def _text(text: str) -> str:
    """The text without halves of surrogate pairs, which no file can hold."""
    return text.encode("utf-8", "replace").decode("utf-8")


def _or(value: float | None, missing: float) -> float:
    return missing if value is None else value


def _known(value: float) -> float | None:
    return value if math.isfinite(value) else None

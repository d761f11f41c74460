"""The result of a load generator: what its clients saw of a served model.

Every latency is in microseconds and None where the tool does not give it. Two figures that are
easily taken for each other are kept apart: TPOT is per token and request, after the first token;
ITL is per streamed chunk, which with speculative decoding holds several tokens.

Runs become the tables `clients` and `requests` of a bundle and come back, without the gaps between
single chunks; how many chunks there were is kept.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from spark_prof.traces.bundle import Bundle
from spark_prof.traces.tables import STATISTICS, TABLES, TableColumn

CLOCKS = ("epoch", "monotonic", "none")
"""What start times count from: the Unix epoch, the boot of the client's host, or unknown."""


@dataclass(frozen=True)
class Latency:
    """Statistics of one latency, in us."""

    mean: float | None = None
    median: float | None = None
    p90: float | None = None
    p99: float | None = None
    std: float | None = None
    # How it was calculated from other figures; empty where the tool gives it itself.
    derived: str = ""

    @property
    def is_measured(self) -> bool:
        """Whether there is any figure that tells how long it takes."""
        return self.mean is not None or self.median is not None

    @property
    def typical(self) -> float | None:
        """The mean, or the median where there is no mean."""
        return self.mean if self.mean is not None else self.median


@dataclass(frozen=True)
class ClientRequest:
    """One request as its client saw it."""

    start_ns: int | None = None  # when it was sent, by the run's clock
    ttft_us: float | None = None
    e2e_us: float | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    chunks: int | None = None  # pieces of the stream that brought tokens
    gaps_us: tuple[float, ...] = ()
    failed: bool = False  # whether it ended in an error; its times then say nothing

    @property
    def tpot_us(self) -> float | None:
        """Time per output token after the first; None for a single token."""
        if self.e2e_us is None or self.ttft_us is None or (self.output_tokens or 0) < 2:
            return None
        return (self.e2e_us - self.ttft_us) / ((self.output_tokens or 0) - 1)


@dataclass(frozen=True)
class RunFigures:
    """What a report shows of a run of a load generator."""

    tool: str  # what measured, such as "vllm bench serve"
    model: str = ""
    label: str = ""  # what tells it from the other runs of its file
    concurrency: int | None = None  # the most requests in flight at a time, as it was asked for
    mean_concurrency: float | None = None  # requests in flight on average, as the tool measured it
    # Requests per second, as it was asked for; None for as fast as they go.
    request_rate: float | None = None
    duration_s: float | None = None
    completed: int | None = None
    failed: int | None = None
    output_throughput: float | None = None
    ttft: Latency = Latency()
    tpot: Latency = Latency()
    itl: Latency = Latency()
    e2e: Latency = Latency()
    tokens_per_chunk: float | None = None  # generated tokens over chunks of the stream
    # Tokens that a step of speculative decoding yields for a request.
    acceptance_length: float | None = None


@dataclass(frozen=True)
class BenchmarkRun(RunFigures):
    """One run of a load generator: one concurrency, request rate or point of a sweep."""

    start_ns: int | None = None
    clock: str = "none"  # one of CLOCKS
    # Its end as the client's wall clock showed it, in a time zone that nobody wrote down, as if it
    # were UTC.
    local_end_ns: int | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    request_throughput: float | None = None
    total_throughput: float | None = None  # prompt and generated tokens per second
    itl_per_token: bool = False  # whether `itl` shares the time of a chunk out among its tokens
    requests: tuple[ClientRequest, ...] = ()
    notes: tuple[str, ...] = ()  # what to know before comparing its figures, one sentence each


@dataclass(frozen=True)
class BenchmarkResult:
    """What one file of a load generator holds."""

    source: str
    runs: tuple[BenchmarkRun, ...]
    lost: tuple[str, ...] = ()  # what the format does not tell, one line each


def latency_of(values_us: Iterable[float | None], derived: str = "") -> Latency:
    """The statistics of single values in us; percentiles are interpolated linearly."""
    values = np.array([v for v in values_us if v is not None and math.isfinite(v)], np.float64)
    if not len(values):
        return Latency()
    median, p90, p99 = np.percentile(values, (50, 90, 99)).tolist()
    return Latency(float(values.mean()), median, p90, p99, float(values.std()), derived)


def tokens_per_chunk(requests: tuple[ClientRequest, ...]) -> float | None:
    """Generated tokens over chunks, of the requests of which both are known."""
    both = [(r.output_tokens, r.chunks) for r in requests if r.output_tokens and r.chunks]
    return sum(t for t, _ in both) / sum(c for _, c in both) if both else None


CLIENTS_RANK = 0  # the rank whose files hold both tables

LATENCIES = ("ttft", "tpot", "itl", "e2e")


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
    for name in LATENCIES:
        latency: Latency = getattr(run, name)
        row |= {f"{name}_{s}_us": getattr(latency, s) for s in STATISTICS}
        row[f"{name}_derived"] = latency.derived
    return row


def _run(row: Mapping[str, Any], requests: pd.DataFrame | None) -> BenchmarkRun:
    values = {item.name: row[item.name] for item in fields(BenchmarkRun) if item.name in row}
    for name in LATENCIES:
        figures = {s: row[f"{name}_{s}_us"] for s in STATISTICS}
        values[name] = Latency(**figures, derived=row[f"{name}_derived"])
    values["notes"] = tuple(filter(None, row["notes"].split("\n")))
    rows = _rows("requests", requests.drop(columns="run")) if requests is not None else ()
    return BenchmarkRun(**values, requests=tuple(ClientRequest(**request) for request in rows))


def _frame(table: str, rows: list[dict[str, Any]]) -> pd.DataFrame:
    columns = TABLES[table].columns
    cells = [[_stored(column, row[column.name]) for column in columns] for row in rows]
    return pd.DataFrame(cells, columns=[column.name for column in columns])


def _stored(column: TableColumn, value: Any) -> Any:
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
        yield {c.name: _or_none(c, value) for c, value in zip(columns, values, strict=True)}


def _or_none(column: TableColumn, value: Any) -> Any:
    if pa.types.is_floating(column.type):
        return None if math.isnan(value) else value
    unknown = 0 if column.name.endswith("_ns") else -1
    return None if pa.types.is_integer(column.type) and value == unknown else value

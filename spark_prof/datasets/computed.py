"""Views that are no table of a bundle: they are worked out where a query names them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pandas as pd
import pyarrow as pa

from spark_prof.analyzers.labels import LABELS, label_kernels
from spark_prof.analyzers.projections import launched, project
from spark_prof.traces.bundle import Bundle
from spark_prof.traces.tables import TABLES

_WORK = ("name", "kind", "start_ns", "end_ns", "device", "stream", "correlation")
_KERNELS = TABLES["kernels"].schema
_MARKERS = TABLES["markers"].schema


@dataclass(frozen=True)
class ComputedView:
    """One such view.

    Attributes:
        schema: its columns.
        rows: works out its rows for a rank of a bundle.
    """

    name: str
    schema: pa.Schema
    rows: Callable[[Bundle, int], pd.DataFrame]


def _integers(*names: str) -> list[pa.Field]:
    return [pa.field(name, pa.int64()) for name in names]


def _projections(bundle: Bundle, rank: int) -> pd.DataFrame:
    markers, host = bundle.frame("markers", rank), bundle.frame("host", rank)
    return project(markers, host, bundle.frame("kernels", rank, _WORK))


def _launches(bundle: Bundle, rank: int) -> pd.DataFrame:
    host, kernels = bundle.frame("host", rank), bundle.frame("kernels", rank, _WORK)
    found = launched(host, kernels)
    kernel, call = kernels.iloc[found.pop("kernel")], host.iloc[found.pop("call")]
    return found.assign(
        name=kernel["name"].array,
        device=kernel["device"].array,
        stream=kernel["stream"].array,
        function=call["name"].array,
        thread=call["thread"].array,
        correlation=call["correlation"].array,
    )


COMPUTED = (
    ComputedView(
        "placed",
        pa.schema([*_KERNELS, *(pa.field(name, pa.string()) for name in LABELS)]),
        label_kernels,
    ),
    ComputedView(
        "projections",
        pa.schema(
            [
                *_integers("range"),
                *(_MARKERS.field(n) for n in ("name", "domain", "nested", "thread")),
                *(_MARKERS.field(n) for n in ("start_ns", "end_ns")),
                *_integers("gpu_start_ns", "gpu_end_ns", "ops", "level", "parent", "children"),
            ]
        ),
        _projections,
    ),
    ComputedView(
        "launches",
        pa.schema(
            [
                *_integers("call_ns", "call_time_ns", "queue_ns"),
                *_integers("start_ns", "time_ns", "total_ns"),
                *(_KERNELS.field(name) for name in ("name", "device", "stream")),
                pa.field("function", _KERNELS.field("name").type),
                *_integers("thread", "correlation"),
            ]
        ),
        _launches,
    ),
)
"""The computed views, each after what nsys stats calls its report in docs/query.md."""

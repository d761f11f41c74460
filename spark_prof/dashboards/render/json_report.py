"""Writes records as the JSON that other people's scripts read: keys may be added, none goes.

Times are microseconds and shares are fractions of 1. A figure that does not exist is null, never
NaN, and the names are those of the trace, unchanged.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import fields, is_dataclass
from numbers import Integral, Real
from typing import Any

from spark_prof.analyzers.breakdown import KernelRow
from spark_prof.analyzers.classify.classifier import kernel_id
from spark_prof.analyzers.clients.client_comparison import ClientComparison, beside_clients
from spark_prof.analyzers.comparing.comparison import KernelPart
from spark_prof.analyzers.comparing.noise import Change
from spark_prof.analyzers.context.context_rows import ContextSpeed, LayerKindCost
from spark_prof.analyzers.counters.counter_batches import WeightRow
from spark_prof.analyzers.model import Report
from spark_prof.analyzers.one_layer import LayerKernel
from spark_prof.analyzers.prefill_costs import PromptAttention, PromptProduct
from spark_prof.analyzers.roofline.roofline_rows import Ceilings, RooflinePhase
from spark_prof.analyzers.shapes.shape_rows import ShapeRow
from spark_prof.analyzers.speculation.speculation_rows import (
    DraftCost,
    DraftGroup,
    DraftPosition,
    Speculation,
)
from spark_prof.analyzers.step_accounting import Steps
from spark_prof.analyzers.step_time import StepAccount, StepSums
from spark_prof.analyzers.token_time import TokenTime
from spark_prof.dashboards.render.limits import bounded_record, keys_of
from spark_prof.dashboards.report_verdict import verdict_of
from spark_prof.dashboards.section import WHOLE, DocumentBounds

SCHEMA = 1  # raised when a key changes its meaning or goes; new keys do not raise it

_NO_SPREAD = {"median": None, "p99": None, "mean": None}
_DERIVED: Mapping[type, tuple[str, ...]] = {
    ClientComparison: ("difference",),
    ContextSpeed: ("shortest_tokens_per_s", "longest_tokens_per_s"),
    DraftCost: ("drafter_share", "break_even"),
    DraftGroup: ("proposed_each", "accepted_each"),
    DraftPosition: ("share",),
    KernelPart: ("where",),
    LayerKindCost: ("of_bound",),
    PromptAttention: ("of_peak",),
    PromptProduct: ("rate", "of_peak"),
    RooflinePhase: ("of_floor", "bound_us", "of_bound", "nodes_of_distance"),
    Steps: ("headline", "screen_batch"),
    ShapeRow: ("us_per_call", "tile_waste"),
    Speculation: ("proposed_each", "accepted_each"),
    StepSums: ("busy_us", "residual_percent"),
    TokenTime: ("unprofiled_us", "per_step"),
    WeightRow: ("ratio",),
}
"""What records have in JSON beside their fields."""

_KERNELS = (KernelPart, KernelRow, LayerKernel)
"""Those that are a kernel of a component, which have its `kernel_id` as well."""


_KEYS = (
    "run", "gpu", "steps", "time", "books", "coverage", "components", "layers", "kernels",
    "machine_code", "conflicts", "tokens", "client_tokens", "copies", "shapes", "conversions",
    "modules", "audit", "ranks", "collectives", "replicas", "overhead", "pauses", "counters",
    "markers", "roofline", "requests", "clients", "answers", "findings", "notes", "invariants",
    "parallel", "graphs", "speculation", "context", "prefill", "startup", "memory", "host",
    "known_issues",
)  # fmt: skip
"""What a report's JSON has after its schema: its parts, and those that are made here."""


def record_of(report: Report, only: Collection[str] = ()) -> dict[str, Any]:
    """What the report's JSON has.

    Args:
        only: the sections that will be written: no other part is computed, unless one of them is
            not there. None for all.
    """
    derived: Mapping[str, Callable[[], Any]] = {
        "steps": lambda: {
            name: dict(_NO_SPREAD) if name.endswith("_us") and value is None else value
            for name, value in _plain(report.steps).items()
        },
        "time": lambda: _time(report),
        "books": lambda: [{"phase": row.phase} | _plain(row.sums) for row in report.summed_steps],
        "tokens": lambda: [_typical(row) for row in report.typical_steps],
        "client_tokens": lambda: beside_clients(report.typical_steps, report.clients),
        "known_issues": lambda: report.audit.known_issues if report.audit else (),
    }
    chosen = keys_of(only)
    names = (
        [key for key in _KEYS if key in chosen] if only and chosen <= {*_KEYS, "verdict"} else _KEYS
    )
    parts = {key: derived[key]() if key in derived else getattr(report, key) for key in names}
    return {"schema": SCHEMA, "verdict": verdict_of(report), **parts}


def write(record: Any, bounds: DocumentBounds = WHOLE) -> str:
    """Writes dataclasses, mappings and sequences as JSON that says nothing that JSON can't."""
    # ASCII only: half of a surrogate pair in a kernel's name could not be written as UTF-8.
    return json.dumps(bounded_record(_plain(record), bounds), indent=2, allow_nan=False) + "\n"


def _typical(step: StepAccount) -> dict[str, Any]:
    """A typical step, by the names that its figures have in JSON."""
    a_token = step.steps_per_token
    parts = [
        {"name": part.name, "summed_us": part.kernel_us, "charged_us": part.us,
         "alone_us": part.exclusive_us, "share": step.share(part),
         "ms_per_token": None if a_token is None else part.us * a_token / 1e3,
         "layers": part.layers, "per_layer_us": part.per_layer_us, "spread": part.spread}
        for part in step.parts
    ]  # fmt: skip
    names = ("phase", "batch_size", "steps", "step")
    figures = {"ms_per_token": step.token_us and step.token_us / 1e3, "overlap_us": step.overlap_us}
    record = {name: getattr(step, name) for name in names}
    return record | figures | {"rows": parts, "token": step.token}


def _time(report: Report) -> dict[str, float | None]:
    names = (
        "union_us", "busy_us", "copies_us", "gap_us", "overlap_us", "step_us", "residual_us",
        "residual_percent", "engine_us",
    )  # fmt: skip
    whole = report.all_steps
    times = {name: getattr(whole, name) if whole else None for name in names}
    sums = whole.kernels_us if whole else sum(row.us for row in report.components)
    copies = times["copies_us"] if whole else report.copies.us
    first = {"sum_us": sums, "union_us": times["union_us"], "wall_us": report.wall_us}
    kernels = {"kernel_time_us": sums + report.ahead_us, "exclusive_us": sums}
    return first | times | {"copies_us": copies} | kernels


def _change(change: Change) -> dict[str, Any]:
    """A change; with several recordings a side also the figure of each."""
    record: dict[str, Any] = {key: getattr(change, key) for key in ("a", "b", "us", "low", "high")}
    record |= {"share": change.share(change.us), "sure": change.sure}
    record["share_low"], record["share_high"] = change.shares
    if max(map(len, change.figures)) > 1:
        for side, figures in zip(("a", "b"), change.figures, strict=True):
            record[f"values_{side}"] = [figure.value for figure in figures]
    return record


def _keys(record: Any) -> Iterator[tuple[str, str]]:
    """Each key of a record, and its attribute: a property with the key's name, else the field."""
    for field in fields(record):
        key = field.metadata.get("json", field.name)
        yield key, key if hasattr(record, key) else field.name
    yield from ((name, name) for name in _DERIVED.get(type(record), ()))


def _plain(value: Any) -> Any:
    """As JSON has it: null for what it can't say, and without the noise of binary fractions."""
    if isinstance(value, Change):
        return _plain(_change(value))
    if is_dataclass(value):
        record = {key: _plain(getattr(value, name)) for key, name in _keys(value)}
        if isinstance(value, _KERNELS):
            record["kernel_id"] = kernel_id(value.name)
        return record | {"peaks": dict(record["peaks"])} if isinstance(value, Ceilings) else record
    if isinstance(value, dict):
        return {key: _plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(entry) for entry in value]
    # By their abstract kind, because a table's figures may still be numpy's.
    if isinstance(value, Integral) and not isinstance(value, bool):
        return int(value)
    if isinstance(value, Real) and not isinstance(value, bool):
        return round(float(value), 6) if math.isfinite(value) else None
    return value

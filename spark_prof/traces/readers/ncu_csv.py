"""Reads what `ncu --csv` prints: kernels measured one at a time, and their metrics.

Format: the details page has a row per kernel and metric, `--page raw` a row per kernel with the
units in a row below the head (Nsight Compute CLI, "Output Pages"). Both are read by their columns.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from spark_prof.errors import CommandError
from spark_prof.traces.foreign import Foreign, ForeignProcess, KernelSum, end_to_end
from spark_prof.traces.readers.printed_tables import (
    PrintedTable,
    number,
    small,
    time_ns,
    triple,
    whole,
)
from spark_prof.traces.tables import TABLES

FORMAT = "ncu"

_ABOUT = ("ID", "Process ID", "Kernel Name", "Device", "CC", "Block Size", "Grid Size")
_NO_METRICS = frozenset(
    {*_ABOUT, "Process Name", "Host Name", "Kernel Time", "Context", "Stream", "thread Domain:Push"}
)
_DURATIONS = ("gpu__time_duration.sum", "gpu__time_duration.avg", "Duration")
"""The metrics that hold a kernel's time, best first; the last is the details page's word."""
_MOST_METRICS = 1 << 24


def is_details_page(head: Sequence[str]) -> bool:
    """Whether a table with that head is the details page."""
    return {"ID", "Kernel Name", "Metric Name", "Metric Unit", "Metric Value"} <= set(head)


def is_raw_page(head: Sequence[str]) -> bool:
    """Whether a table with that head is the raw page."""
    return {"ID", "Kernel Name", "Block Size", "Grid Size"} <= set(head) and any(
        "__" in column for column in head
    )


@dataclass
class MeasuredKernel:
    """A kernel that was measured."""

    about: dict[str, str]  # the cells of the columns `_ABOUT`
    # Value and unit as printed, by name.
    metrics: dict[str, tuple[str, str]] = field(default_factory=dict)

    def duration_ns(self) -> int | None:
        """How long it ran, None where that was not measured."""
        durations = (self.metrics.get(name) for name in _DURATIONS)
        times = (time_ns(*value) for value in durations if value is not None)
        return next((t for t in times if t is not None and t >= 0), None)


def ncu_csv(*paths: Path) -> Foreign:
    """Reads the CSVs of one run of Nsight Compute, plain or compressed, as one process.

    It often writes a file for each kernel. The kernels follow one another; the facts are those of
    the first.
    """
    return measured_trace([(path, *kernels_of_csv(path)) for path in paths])


def kernels_of_csv(path: Path) -> tuple[list[MeasuredKernel], list[str]]:
    """The measured kernels of one CSV, and what it lacks."""
    table = PrintedTable(
        path,
        lambda head: is_details_page(head) or is_raw_page(head),
        "what ncu --csv printed, with --page raw or without",
    )
    kernels = list((_details if is_details_page(table.head) else _raw)(table))
    if any(_POINTS.fullmatch(text) for k in kernels for text, _ in k.metrics.values()):
        for kernel in kernels:
            kernel.metrics = {
                name: (_swapped(t), unit) for name, (t, unit) in kernel.metrics.items()
            }
    return kernels, table.lost()


_POINTS = re.compile(r"-?\d{1,3}(?:\.\d{3}){2,}(?:,\d+)?|-?\d{1,3}(?:\.\d{3})+,\d+")
"""A number as ncu prints it in a language that has points between thousands."""


def _swapped(text: str) -> str:
    """The cell of such a table with commas between thousands, as elsewhere."""
    return text.translate({ord("."): ",", ord(","): "."})


def measured_trace(parts: Sequence[tuple[Path, list[MeasuredKernel], list[str]]]) -> Foreign:
    """What was read of one run of Nsight Compute, file after file, as one process."""
    measurements: list[MeasuredKernel] = []
    lost = [
        "Nsight Compute runs each kernel alone, by default with fixed clocks and empty caches: "
        "gaps, steps and layers are unknown, and times are not those of the whole run"
    ]
    for path, mine, lacking in parts:
        if not mine:
            raise CommandError(f"{path} lists no kernel; ncu measured none")
        lost += lacking
        if timeless := sum(kernel.duration_ns() is None for kernel in mine):
            lost.append(f"{timeless} kernels have no gpu__time_duration: they count as 0 ns")
        measurements += mine
    process = ForeignProcess(None, _facts(measurements), metrics=_metrics(measurements))
    windows = end_to_end(0, [_sum(kernel) for kernel in measurements], parts[0][0])
    return Foreign(FORMAT, [process], windows, list(dict.fromkeys(lost)))


def _details(table: PrintedTable) -> Iterator[MeasuredKernel]:
    """The kernels of the details page; rows of one kernel follow one another."""
    last: MeasuredKernel | None = None
    rows = table.rows(*_ABOUT, "Metric Name", "Metric Value", "Metric Unit")
    for place, row in enumerate(rows):
        *about, metric, value, unit = row
        if last is None or about[:2] != [last.about["ID"], last.about["Process ID"]]:
            if last is not None:
                yield last
            last = MeasuredKernel(dict(zip(_ABOUT, about, strict=True)))
        if metric:  # advice of Nsight Compute's rules has none
            last.metrics.setdefault(metric, (value, unit))
        if place > _MOST_METRICS:
            raise table.bad(row, "more rows before it than ncu writes")
    if last is not None:
        yield last


def _raw(table: PrintedTable) -> Iterator[MeasuredKernel]:
    metrics = [column for column in table.head if column not in _NO_METRICS]
    units = [""] * len(metrics)
    for kernels, row in enumerate(table.rows(*_ABOUT, *metrics)):
        about, values = dict(zip(_ABOUT, row, strict=False)), row[len(_ABOUT) :]
        if not any(about.values()):
            units = values
            continue
        if (kernels + 1) * len(metrics) > _MOST_METRICS:
            raise table.bad(row, "more rows before it than ncu writes")
        cells = zip(metrics, values, units, strict=True)
        yield MeasuredKernel(about, {name: (value, unit) for name, value, unit in cells if value})


def _sum(kernel: MeasuredKernel) -> KernelSum:
    return KernelSum(
        name=kernel.about["Kernel Name"],
        instances=1,
        total_ns=kernel.duration_ns() or 0,
        device=small(kernel.about["Device"], 1 << 16),
        grid=triple(kernel.about["Grid Size"]),
        block=triple(kernel.about["Block Size"]),
    )


def _facts(kernels: list[MeasuredKernel]) -> dict[str, Any]:
    about = kernels[0].about
    facts: dict[str, Any] = {"summed": True, "tool": "ncu"}
    facts["gpu"] = {"vendor": "NVIDIA"}
    name, _ = kernels[0].metrics.get("device__attribute_display_name", ("", ""))
    if name:
        facts["gpu"]["name"] = name
    if number(about["CC"]) is not None:
        facts["gpu"]["compute_capability"] = about["CC"].strip()
    if (pid := whole(about["Process ID"])) is not None:
        facts["pid"] = pid
    return facts


def _metrics(kernels: list[MeasuredKernel]) -> pd.DataFrame:
    """The `metrics` table; what is no number, such as a cache setting, is left out."""
    rows = [
        (kernel.about["Kernel Name"], launch, metric, value, unit)
        for launch, kernel in enumerate(kernels)
        for metric, (text, unit) in kernel.metrics.items()
        if (value := _value(text)) is not None
    ]
    frame = pd.DataFrame(rows, columns=TABLES["metrics"].schema.names)
    texts = dict.fromkeys(("name", "metric", "unit"), "category")
    return frame.astype({**texts, "launch": np.int32, "value": np.float64})


def _value(text: str) -> float | None:
    """The number in a cell, NaN for a metric that this GPU does not have."""
    if text.strip().lower() in ("n/a", "nan", "-nan"):
        return float("nan")
    value = number(text)
    return None if value is None else float(value)

"""Bundles made of real ones whose clocks were set while they were recorded."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

_HOST = {
    "steps": ("start_ns", "end_ns"),
    "engine": ("schedule_ns", "update_ns"),
    "ranges": ("start_ns", "end_ns"),
    "host": ("start_ns", "end_ns"),
}
_DEVICE = {"kernels": ("start_ns", "end_ns")}


def clock_set(source: Path, out: Path, at: float, by_ns: int, what: str) -> Path:
    """A copy in which a clock is set at a moment of the recording.

    Args:
        source: a bundle.
        out: the copy.
        at: when, as a share of its steps; the clock is set within the step there, or right after
            it where `what` ends with " between".
        by_ns: how far forward; back where negative.
        what: `all`, `host` or `device`: the clocks that are set.
    """
    shutil.copytree(source, out)
    steps = pq.read_table(source / "steps-rank0.parquet").to_pandas().sort_values("step")
    chosen = steps.iloc[int(at * len(steps))]
    following = steps.iloc[int(at * len(steps)) + 1]
    moment = int((chosen["start_ns"] + chosen["end_ns"]) // 2)
    if what.endswith(" between"):
        moment = int((chosen["end_ns"] + following["start_ns"]) // 2)
    tables = {
        "all": _HOST | _DEVICE, "host": _HOST, "device": _DEVICE,
    }[what.removesuffix(" between")]  # fmt: skip
    for name, columns in tables.items():
        path = out / f"{name}-rank0.parquet"
        if not path.exists():
            continue
        table = pq.read_table(path)
        for column in set(columns) & set(table.column_names):
            times = table[column].to_numpy(zero_copy_only=False).astype(np.int64)
            moved = np.where(times >= moment, times + by_ns, times)
            moved = np.where(times > 0, moved, times)
            place = table.column_names.index(column)
            field = table.schema.field(column)
            table = table.set_column(place, field, pa.array(moved, field.type))
        pq.write_table(table, path)
    return out

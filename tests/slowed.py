"""Bundles made of real ones: a part of their steps, or the same steps slowed down."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from spark_prof.analyzers.attribution.placement import place_kernels
from spark_prof.analyzers.lookup import positions
from spark_prof.analyzers.windows import timed_windows
from spark_prof.traces.assemble import open_bundle

Int64s = npt.NDArray[np.int64]


def window(source: Path, out: Path, part: int, parts: int, batch: int | None = None) -> Path:
    """A copy in which only one part of the decode steps was watched.

    Args:
        source: a bundle.
        out: the copy.
        part: which part, from 0.
        parts: into how many equal ones the decode steps are cut.
        batch: of steps of this batch size only.
    """
    shutil.copytree(source, out)
    path = out / "steps-rank0.parquet"
    table = pq.read_table(path)
    steps = table.to_pandas()
    chosen = steps["phase"].astype(str) == "decode"
    if "watched" in steps:
        chosen &= steps["watched"]
        table = table.drop_columns("watched")
    if batch is not None:
        chosen &= steps["decode_requests"] == batch
    places = np.array_split(np.flatnonzero(chosen), parts)[part]
    watched = np.zeros(len(steps), bool)
    watched[places] = True
    pq.write_table(table.append_column("watched", pa.array(watched)), path)
    return out


def slowed(source: Path, out: Path, share: float, what: str) -> Path:
    """A copy in which every step takes longer by a share of its time.

    Time itself is stretched while chosen kernels run, or while nothing runs, so that all that
    follows comes later: kernels, launches, the scheduler's record.

    Args:
        source: a bundle.
        out: the copy.
        share: 0.03 for 3 %.
        what: a component, `layer N` for all kernels of one layer, or `gaps`.
    """
    shutil.copytree(source, out)
    bundle = open_bundle(source)
    placed = place_kernels(bundle, 0)
    steps = timed_windows(bundle, 0, placed).steps
    chosen = np.ones(len(placed), bool)
    if what.startswith("layer "):
        chosen = (placed["layer"] == int(what.removeprefix("layer "))).to_numpy()
    elif what != "gaps":
        chosen = (placed["component"] == what).to_numpy()
    begin, finish = (steps[name].to_numpy(np.int64) for name in ("begin_ns", "finish_ns"))
    place = positions(steps.index.to_numpy(), placed["step"].to_numpy())
    times = np.stack([placed["start_ns"].to_numpy(), placed["end_ns"].to_numpy()])
    moments, added = [int(begin[0])], [0.0]
    for step in range(len(steps)):
        inside = np.clip(times[:, chosen & (place == step)], begin[step], finish[step])
        spans = _merged(inside)
        if what == "gaps":
            edges = np.concatenate([[begin[step]], spans.T.ravel(), [finish[step]]])
            spans = edges.reshape(-1, 2).T
        took = int((spans[1] - spans[0]).sum())
        if not took:
            continue
        factor = share * (finish[step] - begin[step]) / took
        for start, end in spans.T.tolist():
            moments += [start, end]
            added += [added[-1], added[-1] + factor * (end - start)]
    for path in out.glob("*-rank0.parquet"):
        _stretch(path, np.array(moments, np.int64), np.array(added))
    return out


def _merged(spans: Int64s) -> Int64s:
    """Starts and ends of the time in which any of the spans runs."""
    order = np.argsort(spans[0], kind="stable")
    start, end = spans[0][order], np.maximum.accumulate(spans[1][order])
    opens = np.append(True, start[1:] > end[:-1])[: len(start)]
    closes = np.append(opens[1:], True)[: len(start)]
    return np.stack([start[opens], end[closes]])


def _stretch(path: Path, moments: Int64s, added: npt.NDArray[np.float64]) -> None:
    table = pq.read_table(path)
    for place, field in enumerate(table.schema):
        if not field.name.endswith("_ns") or not pa.types.is_integer(field.type):
            continue
        column = table.column(place).combine_chunks()
        ns = column.fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
        later = np.interp(ns - moments[0], moments - moments[0], added).round().astype(np.int64)
        # Durations and what is not known are no moments.
        moved = np.where(ns > 10**15, ns + later, ns)
        mask = column.is_null().to_numpy(zero_copy_only=False)
        table = table.set_column(place, field, pa.array(moved, field.type, mask=mask))
    pq.write_table(table, path)

"""Reads one piece that the CUPTI backend recorded: raw activity buffers and a file of names.

Format: docs/bundle.md. A record points to its kernel's name in the memory of a process that is
gone, so the names lie beside the buffers. Times are CUPTI's clock plus the offset noted there. Of
an NVTX range one record says where it begins, another where it ends.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pandas as pd

from spark_prof.traces.demangle import demangled
from spark_prof.traces.foreign import (
    Trace,
    category,
    gpu_frame,
    joined,
    no_work,
    together,
    triples,
    typed_frame,
)
from spark_prof.traces.readers.cupti_blocks import read_records
from spark_prof.traces.readers.cupti_records import (
    CALLS,
    COPY,
    DRIVER_CALL,
    FILL,
    GRAPH,
    INTERNAL_LAUNCH,
    KERNELS,
    MARKER,
    OLDEST,
    OVERHEAD,
    PEER_COPY,
    RUNTIME_CALL,
    call_name,
    copy_name,
    fill_name,
    overhead_name,
    record_dtype,
)

_WORK = (*KERNELS, COPY, PEER_COPY, FILL)
_CALLING = (RUNTIME_CALL, DRIVER_CALL, INTERNAL_LAUNCH)
_LATEST_NS = 1 << 62
_MOST_SHARED = (1 << 31) - 1
_THREAD = 2  # CUPTI_ACTIVITY_OBJECT_THREAD
_INSTANT, _BEGIN, _END = 1, 2, 4
"""CUPTI_ACTIVITY_FLAG_MARKER_*; the flags of synchronization objects are passed over."""


def read_cupti(path: Path, names: Path) -> Trace:
    """Reads one piece, as far as it was written."""
    lost: list[str] = []
    texts, marker_texts, offset = _read_names(names, lost)
    work: list[pd.DataFrame] = []
    calls: list[pd.DataFrame] = []
    costs: list[pd.DataFrame] = []
    marks: list[Any] = [np.empty(0, record_dtype(MARKER, OLDEST))]
    timeless = graphs = 0
    for records in read_records(path, lost):
        graphs += records.count(GRAPH)
        for kind in filter(records.count, (*_WORK, *_CALLING, OVERHEAD, MARKER)):
            rows, times = _timed(records.rows(kind), kind, offset)
            timeless += records.count(kind) - len(rows)
            if kind == MARKER:
                marks.append(rows.copy())
            elif not len(rows):
                continue
            elif kind in _WORK:
                work.append(_work(kind, rows, times, texts))
            elif kind in _CALLING:
                calls.append(_calls(kind, rows, times))
            else:
                name = _named(rows["overheadKind"], overhead_name)
                costs.append(pd.DataFrame({"name": name, **times}))
    gpu = joined(work) if work else no_work()
    if timeless:
        lost.append(f"{timeless} records have no time and were left out")
    if graphs:
        lost.append(f"{graphs} CUDA graphs were recorded whole, without their kernels")
    if nameless := int((gpu["name"] == "").sum()):
        lost.append(f"{nameless} kernels have no name")
    return Trace(
        gpu=gpu,
        launches=_launches(calls, gpu),
        overhead=joined(costs) if costs else typed_frame("overhead"),
        markers=_markers(np.concatenate(marks), marker_texts, offset, lost),
        lost=tuple(lost),
    )


def _timed(rows: Any, kind: int, offset: int) -> tuple[Any, dict[str, Any]]:
    """The records with a time that can be, and the times, in ns since the epoch."""
    names = ("timestamp",) * 2 if kind == MARKER else ("start", "end")
    start, end = (rows[name].astype(np.int64) for name in names)
    good = (start > 0) & (start <= end) & (end < _LATEST_NS)
    if not good.all():
        rows, start, end = rows[good], start[good], end[good]
    return rows, {"start_ns": start + offset, "end_ns": end + offset}


def _named(values: Any, name_of: Callable[[int], str]) -> pd.Categorical:
    codes, different = pd.factorize(values)
    return category(codes, [name_of(value) for value in different.tolist()])


def _work(kind: int, rows: Any, times: Mapping[str, Any], texts: Mapping[int, str]) -> pd.DataFrame:
    """Kernels, copies or memsets, as `Trace.gpu`."""
    place = {
        "device": rows["deviceId"], "stream": rows["streamId"],
        "correlation": rows["correlationId"], "graph_node": rows["graphNodeId"], **times,
    }  # fmt: skip
    if kind in KERNELS:
        shared = rows["staticSharedMemory"].astype(np.int64) + rows["dynamicSharedMemory"]
        return gpu_frame(
            name=_named(rows["name"], lambda pointer: texts.get(pointer, "")),
            grid=triples(rows, "grid"),
            block=triples(rows, "block"),
            registers=rows["registersPerThread"],
            shared_bytes=shared.clip(-_MOST_SHARED, _MOST_SHARED),
            **place,
        )
    if kind == FILL:
        name = _named(rows["memoryKind"], fill_name)
        return gpu_frame(name=name, kind="memset", bytes=rows["bytes"], **place)
    codes, ways = together([rows[name] for name in ("copyKind", "srcKind", "dstKind")])
    name = category(codes, [copy_name(kind, *way) for way in ways])
    return gpu_frame(name=name, kind="memcpy", bytes=rows["bytes"], **place)


def _calls(kind: int, rows: Any, times: Mapping[str, Any]) -> pd.DataFrame:
    """API calls, as `Trace.launches`, and whether each is `known` to start work."""
    is_launch = np.isin(rows["cbid"], list(CALLS[kind])) if kind in CALLS else True
    return pd.DataFrame(
        {
            "name": _named(rows["cbid"], partial(call_name, kind)),
            **times,
            "thread": rows["threadId"].astype(np.int64),
            "correlation": rows["correlationId"].astype(np.int64),
            "known": is_launch,
        }
    )


def _launches(calls: list[pd.DataFrame], gpu: pd.DataFrame) -> pd.DataFrame:
    """The calls that started work, an outer call before those inside it.

    Some libraries record all calls; one that is not known to start work stays if it did.
    """
    if not calls:
        return typed_frame("host")
    frame = joined(calls)
    frame = frame[frame.pop("known") | frame["correlation"].isin(gpu["correlation"].unique())]
    return frame.sort_values("start_ns", kind="stable", ignore_index=True)


def _markers(rows: Any, texts: Mapping[int, str], offset: int, lost: list[str]) -> pd.DataFrame:
    """The NVTX ranges, and the marks as ranges of no length, as `Trace.markers`.

    An end follows its begin among the records of its id; it has neither name nor domain.
    """
    time, flags = rows["timestamp"].astype(np.int64), rows["flags"] & (_BEGIN | _END)
    half = np.flatnonzero((flags == _BEGIN) | (flags == _END))
    half = half[np.lexsort((flags[half], time[half], rows["id"][half]))]
    begins, number = flags[half] == _BEGIN, rows["id"][half]
    whole = np.flatnonzero(begins[:-1] & ~begins[1:] & (number[:-1] == number[1:]))
    opened, ended = (int(halves.sum()) - len(whole) for halves in (begins, ~begins))
    if opened or ended:
        lost.append(
            f"{opened} NVTX ranges ended after this piece and {ended} began before it; they were "
            "left out"
        )
    if nameless := int((~np.isin(rows["name"], [0, *texts])).sum()):
        lost.append(f"{nameless} NVTX markers have no name")
    marks = np.flatnonzero(rows["flags"] & _INSTANT)
    first, last = np.append(half[whole], marks), np.append(half[whole + 1], marks)
    order = np.argsort(time[first], kind="stable")
    begun = rows[first[order]]
    return pd.DataFrame(
        {
            **{
                column: _named(begun[column], lambda pointer: texts.get(pointer, ""))
                for column in ("name", "domain")
            },
            "start_ns": time[first[order]] + offset,
            "end_ns": time[last[order]] + offset,
            "thread": np.where(
                begun["objectKind"] == _THREAD, begun["objectId"][:, 1].astype(np.int64), -1
            ),
        }
    )


def kernel_names(document: Mapping[str, Any]) -> dict[str, str]:
    """The name that people read at each address, in what a names file holds."""
    if "names" in document:  # as older versions wrote them
        names: Mapping[str, str] = document["names"]
        return {**names}
    symbols: Mapping[str, str] = document["symbols"]
    return dict(zip(symbols, demangled(map(str, symbols.values())), strict=True))


def symbols_of(document: Mapping[str, Any]) -> dict[str, str]:
    """The function's symbol for each name that people read; empty where none is told."""
    if "functions" in document:
        return dict(document["functions"])
    symbols = [str(symbol) for symbol in document.get("symbols", {}).values()]
    return dict(zip(demangled(symbols), symbols, strict=True))


def _read_names(path: Path, lost: list[str]) -> tuple[dict[int, str], dict[int, str], int]:
    """The kernel name and the marker name at each address, and what to add to a time."""
    try:
        document = orjson.loads(path.read_bytes())
        names, markers = (
            {int(pointer): str(name) for pointer, name in texts.items()}
            for texts in (kernel_names(document), document.get("markers", {}))
        )
        offset = int(document["clock_offset_ns"])
        if abs(offset) >= _LATEST_NS:
            raise ValueError("its clock offset is none")
    except (OSError, KeyError, TypeError, ValueError, AttributeError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        lost.append(f"{path.name} cannot be used ({reason}): kernels lack names and exact times")
        return {}, {}, 0
    return names, markers, offset

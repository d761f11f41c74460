"""Turns rows of an nsys export about work on the GPU into the columns of the `kernels` table.

What the numbers mean: the ENUM tables of real exports of versions 2022.4 to 2026.2.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt
import pandas as pd

from spark_prof.traces.foreign import gpu_frame
from spark_prof.traces.readers.nsys_file import GRAPH, KERNEL, MEMCPY, MEMSET, Clock, category

Int64s = npt.NDArray[np.int64]
Naming = Callable[[Int64s], pd.Categorical]
"""Gives the texts of numbers in the table of strings."""

WHOLE_GRAPH = "CUDA graph (its kernels were not traced)"
"""The row of a graph launch that nsys traced as a whole."""

_COPIES = (
    "", "HtoD", "DtoH", "HtoA", "AtoH", "AtoA", "AtoD", "DtoA", "DtoD", "HtoH", "PtoP",
    "Unified HtoD", "Unified DtoH", "Unified DtoD",
)  # fmt: skip
_MEMORY = ("Pageable", "Pinned", "Device", "Array", "Managed", "Device Static", "Managed Static")

_PLACE = {
    "start": 0, "end": 0, "deviceId": 0, "streamId": 0, "correlationId": -1,
    "graphNodeId": 0,
}  # fmt: skip
_GEOMETRY = dict.fromkeys(("gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ"), 0)
GPU_COLUMNS: Mapping[str, Mapping[str, int]] = {
    KERNEL: _PLACE | _GEOMETRY | {
        "demangledName": -1, "shortName": -1, "registersPerThread": 0, "staticSharedMemory": 0,
        "dynamicSharedMemory": 0,
    },
    MEMCPY: _PLACE | {"bytes": 0, "copyKind": 0, "srcKind": -1, "dstKind": -1},
    MEMSET: _PLACE | {"bytes": 0, "memKind": -1},
    GRAPH: _PLACE,
}  # fmt: skip
"""The columns to read of each table of work, with what stands for NULL and for absent ones."""


def work_frame(
    table: str, rows: Mapping[str, Int64s], clock: Clock, naming: Naming
) -> pd.DataFrame:
    """Rows of one table as Trace.gpu; the texts are categories.

    Args:
        table: which table, one of GPU_COLUMNS.
    """
    place = {
        "start_ns": clock.to_epoch(rows["start"]),
        "end_ns": clock.to_epoch(rows["end"]),
        "device": _small(rows["deviceId"], -1),
        "stream": rows["streamId"],
        "correlation": rows["correlationId"],
        "graph_node": rows["graphNodeId"],
    }
    if table == MEMCPY:
        return gpu_frame(name=_copy_names(rows), kind="memcpy", bytes=rows["bytes"], **place)
    if table == MEMSET:
        return gpu_frame(name=_set_names(rows), kind="memset", bytes=rows["bytes"], **place)
    if table == GRAPH:
        return gpu_frame(name=WHOLE_GRAPH, kind="kernel", **place)
    # A demangled name says which instance of a template ran; the short name is its last word.
    named = np.where(rows["demangledName"] >= 0, rows["demangledName"], rows["shortName"])
    return gpu_frame(
        name=naming(named),
        kind="kernel",
        grid=_triples(rows, "grid"),
        block=_triples(rows, "block"),
        registers=_small(rows["registersPerThread"], 0),
        shared_bytes=_small(
            _small(rows["staticSharedMemory"], 0) + _small(rows["dynamicSharedMemory"], 0), 0
        ),
        **place,
    )


def _small(values: Int64s, unknown: int) -> Int64s:
    """Numbers as 32 bits hold them."""
    return np.where((values >= 0) & (values < 1 << 31), values, unknown)


def _triples(rows: Mapping[str, Int64s], name: str) -> pd.Categorical:
    """The three numbers of each row as `x,y,z`; few of them differ."""
    codes, unique = _together([rows[f"{name}{axis}"] for axis in "XYZ"])
    return category(codes, [",".join(map(str, row)) for row in unique])


def _together(columns: list[Int64s]) -> tuple[npt.NDArray[np.intp], list[tuple[int, ...]]]:
    """The different rows of some columns, and which of them each row is."""
    codes = np.zeros(len(columns[0]), np.intp)
    unique: list[tuple[int, ...]] = [()]
    for column in columns:
        number, values = pd.factorize(column)
        codes, pairs = pd.factorize(codes * max(1, len(values)) + number)
        unique = [
            (*unique[int(pair) // len(values)], int(values[int(pair) % len(values)]))
            for pair in pairs
        ]
    return codes, unique


def _word(words: tuple[str, ...], number: int) -> str:
    return words[number] if 0 <= number < len(words) else ""


def _copy_names(rows: Mapping[str, Int64s]) -> pd.Categorical:
    """Copies named as PyTorch's profiler names them, such as Memcpy HtoD (Pinned -> Device)."""
    codes, kinds = _together([rows[name] for name in ("copyKind", "srcKind", "dstKind")])
    names = []
    for kind, source, target in kinds:
        way = f" ({_word(_MEMORY, source)} -> {_word(_MEMORY, target)})" if source >= 0 else ""
        names.append(f"Memcpy {_word(_COPIES, kind)}".rstrip() + way)
    return category(codes, names)


def _set_names(rows: Mapping[str, Int64s]) -> pd.Categorical:
    codes, kinds = _together([rows["memKind"]])
    return category(codes, [f"Memset ({_word(_MEMORY, kind) or 'Unknown'})" for (kind,) in kinds])

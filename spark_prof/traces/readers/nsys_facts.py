"""Reads what an nsys export says about the machine, the GPUs and CUDA graphs, and what it lacks."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from spark_prof.arrays import Int64s
from spark_prof.traces.foreign import IMPOSSIBLE
from spark_prof.traces.readers.nsys_file import (
    GRAPH,
    ID_MASK,
    KERNEL,
    PROCESS_SHIFT,
    RUNTIME,
    NsysFile,
    open_export,
    read_clock,
)
from spark_prof.traces.readers.nsys_scan import NVTX, Scan

_NODE_TABLES = ("CUDA_GRAPH_NODE_EVENTS", "CUDA_GRAPH_EVENTS")
"""Since 2024 and before; the second then got another meaning, and has no graphNodeId."""

_WARNING, _WORST = 2, 4
"""DIAGNOSTIC_EVENT.severity from a warning to the worst."""

_MOST_DIAGNOSTICS, _LONGEST_DIAGNOSTIC = 8, 200

_UNMATCHED = 0.1  # above this share of launches without work on the GPU, the report is not whole


def created_nodes(export: NsysFile) -> dict[str, Int64s]:
    """The graph nodes that were created or cloned; originalGraphNodeId is 0 for no clone."""
    defaults = {"start": 0, "graphNodeId": 0, "originalGraphNodeId": 0, "globalTid": 0}
    table = _node_table(export)
    if not table:
        return {name: np.empty(0, np.int64) for name in defaults}
    nodes = export.integers(table, defaults)
    itself = nodes["originalGraphNodeId"] == nodes["graphNodeId"]
    nodes["originalGraphNodeId"] = np.where(itself, 0, nodes["originalGraphNodeId"])
    return nodes


def nsys_lacks(path: Path, pid: int) -> tuple[str, ...]:
    """What the export as a whole lacks for that process, one line each."""
    lacks = []
    owned, values = f"(globalPid >> {PROCESS_SHIFT}) & {ID_MASK} = ?", (pid,)
    with open_export(path) as export:
        if not export.count(KERNEL, owned, values) and not export.count(GRAPH, owned, values):
            lacks.append(
                "the nsys report has no GPU kernels of this process; trace with --trace=cuda, by "
                "an nsys that is not older than the driver"
            )
        if not export.has(RUNTIME, "correlationId"):
            lacks.append("the nsys report has no CUDA API calls: its kernels belong to no step")
        in_graphs = f"graphNodeId IS NOT NULL AND graphNodeId <> 0 AND {owned}"
        if export.has(KERNEL, "graphNodeId") and export.count(KERNEL, in_graphs, values):
            table = _node_table(export)
            if not table or not export.count(table, owned.replace("Pid", "Tid"), values):
                lacks.append(
                    "the nsys report does not show how the CUDA graphs were captured: kernels in "
                    "graphs have no layer; trace from the start of vLLM on"
                )
        if not read_clock(export).marked:
            lacks.append(
                "the nsys report has no clock marks of spark-prof: its times are placed by the "
                "start of its session, and how far the clocks drifted apart since is unknown"
            )
        lacks += diagnostics(export, pid)
    return tuple(lacks)


def _node_table(export: NsysFile) -> str:
    columns = ("start", "globalTid", "graphNodeId")
    return next((table for table in _NODE_TABLES if export.has(table, *columns)), "")


def diagnostics(export: NsysFile, pid: int | None = None) -> list[str]:
    """Nsys's own warnings about a process or about all of them; None for those about any."""
    if not export.has("DIAGNOSTIC_EVENT", "severity", "text", "globalPid"):
        return []
    sql = (
        "SELECT DISTINCT substr(CAST(text AS TEXT), 1, ?) FROM DIAGNOSTIC_EVENT "
        "WHERE severity BETWEEN ? AND ? AND (? OR globalPid <= 0 OR globalPid IS NULL"
        f" OR (globalPid >> {PROCESS_SHIFT}) & {ID_MASK} IN (0, ?)) LIMIT ?"
    )
    values = (_LONGEST_DIAGNOSTIC, _WARNING, _WORST, pid is None, pid, _MOST_DIAGNOSTICS)
    return [f"nsys: {' '.join(str(text).split())}" for (text,) in export.rows(sql, values)]


_LONGEST = 200
_MEANINGS = {
    "Hostname": "host", "NvDriverVersion": "driver", "EXPORT_PRODUCT_VERSION": "nsys",
    "CUDA_GRAPH_TRACE_OPTIONS:MODE": "graph_trace",
    "PROCESS_0:CUDA_GRAPH_TRACE_OPTIONS:MODE": "graph_trace",
}  # fmt: skip
_SAYERS = ("TARGET_INFO_SYSTEM_ENV", "META_DATA_EXPORT", "META_DATA_CAPTURE")


def process_facts(export: NsysFile, pid: int, devices: list[int]) -> dict[str, Any]:
    """What is known of a process, with the keys of Meta.facts; `devices` by its CUDA numbers."""
    facts: dict[str, Any] = {"pid": pid}
    named_values = _named_values(export)
    facts.update(
        {key: named_values[key] for key in ("host", "nsys", "graph_trace") if key in named_values}
    )
    gpu = _gpu(export, pid, devices[0]) if devices else {}
    facts["gpu"] = {"vendor": "NVIDIA"} | gpu
    if "driver" in named_values:
        facts["gpu"]["driver"] = named_values["driver"]
    return facts


def lacks(export: NsysFile, scan: Scan, dated: bool) -> list[str]:
    """What the export as a whole lacks, one line each."""
    lost = []
    if not dated:
        lost.append(
            "the export does not say when its session started: its times count from there, and "
            "cannot be compared with those of other files"
        )
    if not scan.rows.get(KERNEL) and not scan.rows.get(GRAPH):
        lost.append("the export has no GPU kernels; record with --trace=cuda")
    if not scan.rows.get(RUNTIME):
        lost.append(
            "the export has no CUDA API calls: what its kernels were launched for is unknown"
        )
    if not scan.rows.get(NVTX):
        lost.append("the export has no NVTX ranges: modules and layers are unknown")
    lost += whole_graphs(scan.rows.get(GRAPH, 0))
    if scan.endless:
        lost.append(
            f"{scan.endless} NVTX ranges had not ended when the recording did; they end with it"
        )
    lost += [
        f"{IMPOSSIBLE} {count:,} of {count + scan.rows.get(table, 0):,} rows of {table} left out: "
        "an end before the start, or a time that is none"
        for table, count in sorted(scan.impossible.items())
    ]
    return lost + diagnostics(export)


def whole_graphs(count: int) -> list[str]:
    """What to say about graph launches whose kernels were not traced."""
    if not count:
        return []
    return [
        f"{count} CUDA graph launches were traced as a whole: the kernels inside them, with "
        "their names, layers and components, are missing; trace with --cuda-graph-trace=node"
    ]


def missing_kernels(idle: int, launches: int, orphans: int = 0) -> list[str]:
    """What to say about launches without work on the GPU, of `launches` in all.

    Where as many kernels and copies (`orphans`) lack their launch, a longer export was cut.
    """
    if idle <= max(_UNMATCHED * launches, 2 * orphans):
        return []
    return [
        f"{idle} of {launches} launches have no kernel in the nsys report; an nsys that is older "
        "than the driver misses kernels, take the one of your CUDA toolkit or a newer"
    ]


def _named_values(export: NsysFile) -> Mapping[str, str]:
    """Values of the tables of names and values, by what they mean."""
    values: dict[str, str] = {}
    marks = ", ".join("?" * len(_MEANINGS))
    for table in _SAYERS:
        if export.has(table, "name", "value"):
            sql = (
                f"SELECT name, substr(CAST(value AS TEXT), 1, {_LONGEST}) FROM {table} "
                f"WHERE name IN ({marks})"
            )
            for name, value in export.rows(sql, tuple(_MEANINGS)):
                values.setdefault(_MEANINGS[str(name)], str(value))
    return values


def _gpu(export: NsysFile, pid: int, device: int) -> dict[str, Any]:
    """The GPU that a process knows by this number."""
    table = "TARGET_INFO_CUDA_DEVICE"
    number = device
    if export.has(table, "gpuId", "cudaId", "pid"):
        rows = export.integers(table, {"gpuId": -1}, "pid = ? AND cudaId = ?", (pid, device))
        number = int(rows["gpuId"][0]) if len(rows["gpuId"]) else device
    if not export.has("TARGET_INFO_GPU", "id", "name"):
        return {}
    defaults = {"computeMajor": 0, "computeMinor": 0, "smCount": 0, "totalMemory": 0}
    rows = export.integers("TARGET_INFO_GPU", defaults, "id = ?", (number,))
    sql = f"SELECT substr(CAST(name AS TEXT), 1, {_LONGEST}) FROM TARGET_INFO_GPU WHERE id = ?"
    names = [str(name) for (name,) in export.rows(sql, (number,))]
    if not names:
        return {}
    major, minor, sms, memory = (int(rows[name][0]) for name in defaults)
    return {
        "name": names[0],
        "compute_capability": f"{major}.{minor}" if major else None,
        "multiprocessors": sms,
        "memory_bytes": memory,
    }

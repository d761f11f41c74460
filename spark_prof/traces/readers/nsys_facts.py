"""Reads what an nsys export says about the machine, the GPUs and the recording itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from spark_prof.traces.readers.nsys_file import GRAPH, KERNEL, RUNTIME, NsysFile
from spark_prof.traces.readers.nsys_graphs import diagnostics
from spark_prof.traces.readers.nsys_scan import NVTX, Scan

_LONGEST = 200
_MEANINGS = {
    "Hostname": "host", "NvDriverVersion": "driver", "EXPORT_PRODUCT_VERSION": "nsys",
    "CUDA_GRAPH_TRACE_OPTIONS:MODE": "graph_trace",
    "PROCESS_0:CUDA_GRAPH_TRACE_OPTIONS:MODE": "graph_trace",
}  # fmt: skip
_SAYERS = ("TARGET_INFO_SYSTEM_ENV", "META_DATA_EXPORT", "META_DATA_CAPTURE")


def process_facts(export: NsysFile, pid: int, devices: list[int]) -> dict[str, Any]:
    """What is known of a process, with the keys of Meta.facts.

    Args:
        export: the export.
        pid: the process.
        devices: the GPUs that it used, as its own CUDA numbers them.
    """
    facts: dict[str, Any] = {"pid": pid}
    said = _said(export)
    facts.update({key: said[key] for key in ("host", "nsys", "graph_trace") if key in said})
    gpu = _gpu(export, pid, devices[0]) if devices else {}
    facts["gpu"] = {"vendor": "NVIDIA"} | gpu
    if "driver" in said:
        facts["gpu"]["driver"] = said["driver"]
    return facts


def lacks(export: NsysFile, scan: Scan, dated: bool) -> list[str]:
    """What the export as a whole lacks, one line each.

    Args:
        export: the export.
        scan: what one reading of it found.
        dated: whether it says when its session started.
    """
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
    if count := scan.rows.get(GRAPH):
        lost.append(
            f"{count} CUDA graph launches were traced as a whole: the kernels inside them, with "
            "their names, layers and components, are missing; trace with --cuda-graph-trace=node"
        )
    if scan.endless:
        lost.append(
            f"{scan.endless} NVTX ranges had not ended when the recording did; they end with it"
        )
    lost += [
        f"{count} rows of {table} have times that cannot be; they were left out"
        for table, count in sorted(scan.impossible.items())
    ]
    return lost + diagnostics(export)


def _said(export: NsysFile) -> Mapping[str, str]:
    """Values of the tables of names and values, by what they mean."""
    found: dict[str, str] = {}
    marks = ", ".join("?" * len(_MEANINGS))
    for table in _SAYERS:
        if export.has(table, "name", "value"):
            sql = (
                f"SELECT name, substr(CAST(value AS TEXT), 1, {_LONGEST}) FROM {table} "
                f"WHERE name IN ({marks})"
            )
            for name, value in export.rows(sql, tuple(_MEANINGS)):
                found.setdefault(_MEANINGS[str(name)], str(value))
    return found


def _gpu(export: NsysFile, pid: int, device: int) -> dict[str, Any]:
    """The GPU that a process knows by this number."""
    table = "TARGET_INFO_CUDA_DEVICE"
    number = device
    if export.has(table, "gpuId", "cudaId", "pid"):
        rows = export.integers(table, {"gpuId": -1}, "pid = ? AND cudaId = ?", (pid, device))
        number = int(rows["gpuId"][0]) if len(rows["gpuId"]) else device
    if not export.has("TARGET_INFO_GPU", "id", "name"):
        return {}
    wanted = {"computeMajor": 0, "computeMinor": 0, "smCount": 0, "totalMemory": 0}
    rows = export.integers("TARGET_INFO_GPU", wanted, "id = ?", (number,))
    sql = f"SELECT substr(CAST(name AS TEXT), 1, {_LONGEST}) FROM TARGET_INFO_GPU WHERE id = ?"
    names = [str(name) for (name,) in export.rows(sql, (number,))]
    if not names:
        return {}
    major, minor, sms, memory = (int(rows[name][0]) for name in wanted)
    return {
        "name": names[0],
        "compute_capability": f"{major}.{minor}" if major else None,
        "multiprocessors": sms,
        "memory_bytes": memory,
    }

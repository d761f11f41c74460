"""Small SQLite exports as nsys writes them, in each dialect, filled by hand.

Column lists are those of real exports; times are ns after the session's start, which is `BEGUN`.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.support import ORIGIN, THREAD

BEGUN = ORIGIN
"""When the session started, ns since the epoch."""

PID = 1234

_PLACE = "start end deviceId contextId streamId correlationId globalPid graphNodeId"
TABLES = {
    "StringIds": "id value",
    "TARGET_INFO_SESSION_START_TIME": "utcEpochNs utcTime localTime",
    "CUPTI_ACTIVITY_KIND_KERNEL": _PLACE + " demangledName shortName mangledName registersPerThread"
    " gridX gridY gridZ blockX blockY blockZ staticSharedMemory dynamicSharedMemory",
    "CUPTI_ACTIVITY_KIND_MEMCPY": _PLACE + " bytes copyKind srcKind dstKind",
    "CUPTI_ACTIVITY_KIND_MEMSET": _PLACE + " bytes value memKind",
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": "start end deviceId contextId streamId correlationId"
    " globalPid graphId graphExecId",
    "CUPTI_ACTIVITY_KIND_RUNTIME": "start end eventClass globalTid correlationId nameId"
    " returnValue callchainId",
    "CUPTI_ACTIVITY_KIND_OVERHEAD": "start end eventClass globalTid correlationId nameId"
    " overheadType",
    "NVTX_EVENTS": "start end eventType text globalTid textId domainId",
    "DIAGNOSTIC_EVENT": "timestamp timestampType source severity text globalPid",
    # Since 2024; before, the first had the other's name and the second was not there.
    "CUDA_GRAPH_NODE_EVENTS": "start end eventClass globalTid nameId graphNodeId"
    " originalGraphNodeId",
    "CUDA_GRAPH_EVENTS": "start end eventClass globalTid nameId graphId originalGraphId"
    " graphExecId",
}
KERNEL, MEMCPY, MEMSET, GRAPH, RUNTIME = (
    f"CUPTI_ACTIVITY_KIND_{name}"
    for name in ("KERNEL", "MEMCPY", "MEMSET", "GRAPH_TRACE", "RUNTIME")
)


def global_pid(pid: int) -> int:
    """A process as nsys packs it, on a virtual machine of its own."""
    return 1 << 48 | pid << 24


def global_tid(pid: int, thread: int) -> int:
    """A thread as nsys packs it."""
    return global_pid(pid) | thread


@dataclass
class Export:
    """Rows of an export; tables that get no row are not there, as nsys does by default."""

    rows: dict[str, list[Mapping[str, object]]] = field(default_factory=dict)
    columns: dict[str, str] = field(default_factory=lambda: dict(TABLES))
    strings: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.add("TARGET_INFO_SESSION_START_TIME", utcEpochNs=BEGUN)

    def add(self, table: str, **values: object) -> Export:
        self.rows.setdefault(table, []).append(values)
        return self

    def text(self, value: str) -> int:
        return self.strings.setdefault(value, len(self.strings) + 7)

    def launch(
        self,
        start: int,
        correlation: int,
        name: str = "cudaLaunchKernel_v7000",
        pid: int = PID,
        thread: int = THREAD,
        end: int | None = None,
    ) -> Export:
        return self.add(
            RUNTIME, start=start, end=start + 5 if end is None else end, eventClass=0,
            globalTid=global_tid(pid, thread), correlationId=correlation, nameId=self.text(name),
            returnValue=0,
        )  # fmt: skip

    def kernel(
        self,
        name: str,
        start: int,
        end: int,
        correlation: int | None,
        pid: int = PID,
        node: int | None = None,
        **more: object,
    ) -> Export:
        values: dict[str, object] = {
            "deviceId": 0, "contextId": 1, "streamId": 7, "registersPerThread": 32,
            "gridX": 4, "gridY": 2, "gridZ": 1, "blockX": 128, "blockY": 1, "blockZ": 1,
            "staticSharedMemory": 16, "dynamicSharedMemory": 32,
        }  # fmt: skip
        return self.add(
            KERNEL, start=start, end=end, correlationId=correlation, globalPid=global_pid(pid),
            graphNodeId=node, demangledName=self.text(name), shortName=self.text("short"),
            **(values | more),
        )  # fmt: skip

    def node(
        self,
        start: int,
        node: int,
        original: int | None = None,
        table: str = "CUDA_GRAPH_NODE_EVENTS",
        pid: int = PID,
    ) -> Export:
        return self.add(
            table, start=start, end=start, eventClass=77, globalTid=global_tid(pid, THREAD),
            nameId=self.text("node"), graphNodeId=node, originalGraphNodeId=original,
        )  # fmt: skip

    def mark(self, start: int, text: str, *, registered: bool = False) -> Export:
        named: dict[str, object] = {"textId": self.text(text)} if registered else {"text": text}
        return self.add(
            "NVTX_EVENTS", start=start, eventType=34, globalTid=global_tid(PID, THREAD), domainId=0,
            **named,
        )  # fmt: skip

    def write(self, path: Path) -> Path:
        for value, number in self.strings.items():
            self.add("StringIds", id=number, value=value)
        connection = sqlite3.connect(path)
        with connection:
            for table, rows in self.rows.items():
                names = self.columns[table].split()
                connection.execute(f"CREATE TABLE {table} ({', '.join(names)})")
                marks = ", ".join("?" * len(names))
                connection.executemany(
                    f"INSERT INTO {table} VALUES ({marks})",
                    [[row.get(name) for name in names] for row in rows],
                )
        connection.close()
        return path

"""Writes nsys exports of any size.

An export is of two vLLM-like ranks that run eagerly: a step is a tree of module ranges, five to
six deep with the operators in them, and each kernel has its launch among other API calls. The
proportions are those of a real 3.5 GB export (15.9 M ranges, 7.1 M calls, 2.2 M kernels).
"""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import adbc_driver_sqlite.dbapi as adbc
import numpy as np
import pyarrow as pa

RANKS = 2
LAYERS = 36

_STEPS_PER_BATCH = 64
_EPOCH_NS = 1_779_630_014_975_716_426
_MODULES = {
    "input_layernorm": ["aten::rms_norm"],
    "self_attn.qkv_proj": ["aten::linear"],
    "self_attn.rotary_emb": ["_C::rotary_embedding"],
    "self_attn.attn": ["_C_cache_ops::reshape_and_cache_flash", "vllm::unified_attention"],
    "self_attn.o_proj": ["aten::linear"],
    "post_attention_layernorm": ["_C::fused_add_rms_norm"],
    "mlp.gate_up_proj": ["aten::linear"],
    "mlp.act_fn": ["_C::silu_and_mul"],
    "mlp.down_proj": ["aten::linear"],
}
_HELPERS = ("aten::empty", "aten::view", "aten::slice", "aten::as_strided")
_CALLS = (
    "cudaLaunchKernel_v7000", "cudaStreamIsCapturing_v10000", "cudaEventRecord_v3020",
)  # fmt: skip
_TABLES = {
    "StringIds": "id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL",
    "TARGET_INFO_SESSION_START_TIME": "utcEpochNs INTEGER, utcTime TEXT, localTime TEXT",
    "NVTX_EVENTS": "start INTEGER NOT NULL, end INTEGER, eventType INTEGER NOT NULL, "
    "rangeId INTEGER, category INTEGER, color INTEGER, text TEXT, globalTid INTEGER, "
    "endGlobalTid INTEGER, textId INTEGER, domainId INTEGER, uint64Value INTEGER, "
    "int64Value INTEGER, doubleValue REAL, uint32Value INTEGER, int32Value INTEGER, "
    "floatValue REAL, jsonTextId INTEGER, jsonText TEXT, binaryData TEXT",
    "CUPTI_ACTIVITY_KIND_RUNTIME": "start INTEGER NOT NULL, end INTEGER NOT NULL, "
    "eventClass INTEGER NOT NULL, globalTid INTEGER, correlationId INTEGER, "
    "nameId INTEGER NOT NULL, returnValue INTEGER NOT NULL, callchainId INTEGER",
    "CUPTI_ACTIVITY_KIND_KERNEL": "start INTEGER, end INTEGER, deviceId INTEGER, "
    "contextId INTEGER, greenContextId INTEGER, streamId INTEGER, correlationId INTEGER, "
    "globalPid INTEGER, demangledName INTEGER, shortName INTEGER, mangledName INTEGER, "
    "launchType INTEGER, cacheConfig INTEGER, registersPerThread INTEGER, gridX INTEGER, "
    "gridY INTEGER, gridZ INTEGER, blockX INTEGER, blockY INTEGER, blockZ INTEGER, "
    "staticSharedMemory INTEGER, dynamicSharedMemory INTEGER, localMemoryPerThread INTEGER, "
    "localMemoryTotal INTEGER, gridId INTEGER, sharedMemoryExecuted INTEGER, "
    "graphNodeId INTEGER, sharedMemoryLimitConfig INTEGER",
}


@dataclass
class _Step:
    """The rows of one step of one rank, times in ns since its start."""

    now: int = 0
    device: int = 0
    ranges: list[tuple[int, int, str]] = field(default_factory=list)
    calls: list[tuple[int, int, int]] = field(default_factory=list)
    kernels: list[tuple[int, int, int, int]] = field(default_factory=list)

    def range(self, name: str, inside: Iterator[None]) -> None:
        begun = self.now
        self.now += 60
        for _ in inside:
            pass
        self.now += 60
        self.ranges.append((begun, self.now, name))

    def call(self, name: int, kernel: int = -1) -> None:
        begun, self.now = self.now + 40, self.now + 1_500
        if kernel >= 0:
            self.device = max(self.device, self.now) + 300
            ended = self.device + 1_000 + 700 * kernel
            self.kernels.append((self.device, ended, kernel, len(self.calls)))
            self.device = ended
        self.calls.append((begun, self.now - 40, name))


def _operator(step: _Step, name: str, kernel: int) -> Iterator[None]:
    for helper in _HELPERS:
        step.range(helper, iter(()))
    step.call(1)
    step.call(2)
    step.range(f"{name}.out", _launch(step, kernel))
    yield


def _launch(step: _Step, kernel: int) -> Iterator[None]:
    step.call(0, kernel)
    yield


def _layer(step: _Step, layer: int) -> Iterator[None]:
    path, kernel = f"model.layers.{layer}", 0
    for _ in range(2):
        step.range("aten::view", iter(()))
        step.call(2)
    for module, operators in _MODULES.items():

        def inside(operators: list[str] = operators) -> Iterator[None]:
            nonlocal kernel
            for operator in operators:
                step.range(operator, _operator(step, operator, kernel))
                kernel += 1
                yield

        step.range(f"{path}.{module}", inside())
    yield


def _model(step: _Step) -> Iterator[None]:
    for layer in range(LAYERS):
        step.range(f"model.layers.{layer}", _layer(step, layer))
        yield


def _step() -> _Step:
    step = _Step()

    def execute() -> Iterator[None]:
        step.range("model", _model(step))
        yield

    step.range("execute_context_0(0)_generation_8(8)", execute())
    return step


def write_export(path: Path, kernels: int) -> dict[str, int]:
    """Writes an export with about that many kernels.

    Returns:
        The rows of each table of events.
    """
    step = _step()
    steps = max(1, round(kernels / (RANKS * len(step.kernels))))
    names = [*_CALLS, *(f"void kernel_{number}<float>(int, T1)" for number in range(10))]
    path.unlink(missing_ok=True)
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA journal_mode = OFF")
    for table, columns in _TABLES.items():
        connection.execute(f"CREATE TABLE {table} ({columns})")
    connection.executemany("INSERT INTO StringIds VALUES (?, ?)", enumerate(names))
    connection.execute(
        "INSERT INTO TARGET_INFO_SESSION_START_TIME (utcEpochNs) VALUES (?)", (_EPOCH_NS,)
    )
    connection.commit()
    connection.close()
    rows = dict.fromkeys(
        ("NVTX_EVENTS", "CUPTI_ACTIVITY_KIND_RUNTIME", "CUPTI_ACTIVITY_KIND_KERNEL"), 0
    )
    with adbc.connect(str(path), autocommit=True) as writer, writer.cursor() as cursor:
        cursor.execute("PRAGMA journal_mode = OFF")
        cursor.execute("PRAGMA synchronous = OFF")
        for table in rows:
            for first in range(0, steps, _STEPS_PER_BATCH):
                numbers = np.arange(first, min(steps, first + _STEPS_PER_BATCH), dtype=np.int64)
                batch = _batch(table, step, numbers)
                rows[table] += batch.num_rows
                cursor.adbc_ingest(table, batch, mode="append")
    return rows


def _batch(table: str, step: _Step, numbers: np.ndarray) -> pa.Table:
    """The rows of both ranks in these steps, in order of their start."""
    length = max(step.now, step.device) + 10_000
    parts = []
    for rank in range(RANKS):
        begun = 1_000_000 + rank * 777 + numbers * length
        parts.append(_rows(table, step, numbers, begun, 1000 + rank))
    whole = pa.concat_tables(parts)
    return whole.take(pa.array(np.argsort(whole["start"].to_numpy(), kind="stable")))


def _rows(table: str, step: _Step, numbers: np.ndarray, begun: np.ndarray, pid: int) -> pa.Table:
    owner = 1 << 48 | pid << 24

    def spread(column: Sequence[int], base: np.ndarray) -> np.ndarray:
        return (base[:, None] + np.array(column, np.int64)[None, :]).ravel()

    def repeat(column: Sequence[int]) -> np.ndarray:
        return np.tile(np.array(column, np.int64), len(numbers))

    def constant(value: int, like: np.ndarray) -> np.ndarray:
        return np.full(len(like), value, np.int64)

    calls = numbers * len(step.calls) + 1
    if table == "NVTX_EVENTS":
        start, end, texts = zip(*step.ranges, strict=True)
        at = spread(start, begun)
        text = pa.array(texts).take(pa.array(np.tile(np.arange(len(texts)), len(numbers))))
        columns = {
            "start": at, "end": spread(end, begun), "eventType": constant(59, at), "text": text,
            "globalTid": constant(owner | pid, at), "domainId": constant(0, at),
        }  # fmt: skip
    elif table == "CUPTI_ACTIVITY_KIND_RUNTIME":
        start, end, name = zip(*step.calls, strict=True)
        at = spread(start, begun)
        columns = {
            "start": at, "end": spread(end, begun), "eventClass": constant(0, at),
            "globalTid": constant(owner | pid, at),
            "correlationId": spread(list(range(len(step.calls))), calls),
            "nameId": repeat(name), "returnValue": constant(0, at),
        }  # fmt: skip
    else:
        start, end, kind, call = zip(*step.kernels, strict=True)
        at = spread(start, begun)
        columns = {
            "start": at, "end": spread(end, begun), "deviceId": constant(pid - 1000, at),
            "contextId": constant(1, at), "greenContextId": constant(0, at),
            "streamId": constant(7, at), "correlationId": spread(call, calls),
            "globalPid": constant(owner, at), "demangledName": repeat(kind) + len(_CALLS),
            "shortName": repeat(kind) + len(_CALLS), "mangledName": repeat(kind) + len(_CALLS),
        }  # fmt: skip
        columns |= dict.fromkeys(("launchType", "cacheConfig"), constant(1, at))
        columns |= dict.fromkeys(("registersPerThread", "blockX"), constant(128, at))
        columns |= dict.fromkeys(("gridX", "gridY", "gridZ", "blockY", "blockZ"), constant(1, at))
        columns |= dict.fromkeys(
            ("staticSharedMemory", "dynamicSharedMemory", "localMemoryPerThread",
             "localMemoryTotal", "sharedMemoryExecuted", "sharedMemoryLimitConfig"),
            constant(0, at),
        )  # fmt: skip
        columns["gridId"] = spread(call, calls)
    names = [column.split()[0] for column in _TABLES[table].split(", ")]
    schema = {"text": pa.string(), "jsonText": pa.string(), "binaryData": pa.string()}
    return pa.table(
        {
            name: columns[name]
            if name in columns
            else pa.nulls(len(at), schema.get(name, pa.int64()))
            for name in names
        }
    )


if __name__ == "__main__":
    write_export(Path(sys.argv[2]), int(sys.argv[1]))

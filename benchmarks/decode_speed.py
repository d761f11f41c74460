"""Raw CUPTI records a second: decoded, and turned into the columns of a bundle by `read_cupti`.

Three files of records as CUDA 13.0's libcupti writes them, in buffers of 4 MiB: kernels of one CUDA
graph again and again; a launch and its kernel in turn; both in no order at all. The floor, in the
same run, is what NumPy needs to read the file of kernels and copy the same fields, knowing that
nothing else is in it. With --file it is one recorded file instead, with its names beside it.

usage: python benchmarks/decode_speed.py [--records N] [--file PIECE.activity.bin]
exit code: 1 if fewer than 20 million kernel records a second are decoded
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from spark_prof.traces.readers.cupti_blocks import HEADER, MAGIC, read_records
from spark_prof.traces.readers.cupti_records import RUNTIME_CALL, record_dtype
from spark_prof.traces.readers.cupti_trace import read_cupti

VERSION, KERNEL, BUFFER = 130001, 10, 4 << 20
BAR, RUNS = 20e6, 7
NODES, NAMES, FIRST_ADDRESS = 300, 60, 0x7F00_0000_0000
COPIED = (
    "start", "end", "name", "deviceId", "streamId", "correlationId", "graphNodeId", "gridX",
    "blockX", "registersPerThread", "dynamicSharedMemory",
)  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=3_000_000)
    parser.add_argument("--file", type=Path, help="a recorded piece")
    options = parser.parse_args()
    if options.file:
        names = Path(str(options.file).replace(".activity.bin", ".names.json"))
        count = sum(map(len, read_records(options.file, [])))
        show(options.file.name, count, best(lambda: read_cupti(options.file, names)))
        return 0
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        names = folder / "names.json"
        table = {str(FIRST_ADDRESS + 64 * i): f"void kernel_{i}<float>()" for i in range(NAMES)}
        names.write_text(json.dumps({"clock_offset_ns": 0, "names": table}))
        kernels, launches = make_records(options.records)
        path = folder / "kernels.activity.bin"
        write(path, [kernels.tobytes()], kernels.itemsize)
        floor = best(lambda: copy_columns(path, kernels.dtype))
        decode_seconds = best(lambda: read_cupti(path, names))
        show("reading and copying the fields", len(kernels), floor)
        decoded = best(lambda: sum_durations(path))
        show("decoded, durations added up", len(kernels), decoded, floor)
        show("kernels of a graph", len(kernels), decode_seconds, floor)
        half = options.records // 2
        write_mixed(path, kernels[:half], launches[:half], np.tile([0, 1], half))
        show("launch, kernel in turn", 2 * half, best(lambda: read_cupti(path, names)), floor)
        order = np.random.default_rng(0).permutation(np.tile([0, 1], half))
        write_mixed(path, kernels[:half], launches[:half], order)
        show("the same in no order", 2 * half, best(lambda: read_cupti(path, names)), floor)
    print(f"peak memory of it all: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10} MiB")
    return int(len(kernels) / decoded < BAR)


def sum_durations(path: Path) -> int:
    """Finds every record and reads two fields of it, without making a table of them."""
    total = 0
    for records in read_records(path, []):
        rows = records.rows(KERNEL)
        total += int((rows["end"] - rows["start"]).sum())
    return total


def make_records(count: int) -> tuple[Any, Any]:
    """Kernels of a graph that is replayed, and as many launches."""
    dice = np.random.default_rng(0)
    node = np.arange(count) % NODES
    kernels = np.zeros(count, record_dtype(KERNEL, VERSION))
    kernels.view(np.uint8).reshape(count, -1)[:, 0] = KERNEL
    kernels["start"] = 1_800_000_000_000_000_000 + 5000 * np.arange(count)
    kernels["end"] = kernels["start"] + 3000
    kernels["name"] = FIRST_ADDRESS + 64 * dice.integers(0, NAMES, NODES)[node]
    kernels["graphNodeId"], kernels["correlationId"] = 1000 + node, np.arange(count) // NODES
    for field, most in (("gridX", 4000), ("blockX", 1024), ("dynamicSharedMemory", 200_000)):
        kernels[field] = dice.integers(1, most, NODES)[node]
    for field in ("gridY", "gridZ", "blockY", "blockZ"):
        kernels[field] = 1
    launches = np.zeros(count, record_dtype(RUNTIME_CALL, VERSION))
    launches["kind"], launches["cbid"], launches["threadId"] = RUNTIME_CALL, 211, 4321
    launches["start"], launches["end"] = kernels["start"] - 9000, kernels["start"] - 8000
    launches["correlationId"] = np.arange(count)
    return kernels, launches


def write(path: Path, parts: list[bytes], record: int) -> None:
    """Buffers of whole records, as the recorder writes them."""
    data = b"".join(parts)
    step = BUFFER // record * record
    with path.open("wb") as file:
        for begin in range(0, len(data), step):
            piece = data[begin : begin + step]
            file.write(HEADER.pack(MAGIC, VERSION, 0, len(piece), 0) + piece)


def write_mixed(path: Path, kernels: Any, launches: Any, order: Any) -> None:
    """As `write`: the next launch where the order says 0, the next kernel where it says 1."""
    sources = [[row.tobytes() for row in rows] for rows in (launches, kernels)]
    streams = [iter(source) for source in sources]
    parts = [next(streams[which]) for which in order.tolist()]
    with path.open("wb") as file:
        for begin in range(0, len(parts), BUFFER // 128):
            piece = b"".join(parts[begin : begin + BUFFER // 128])
            file.write(HEADER.pack(MAGIC, VERSION, 0, len(piece), 0) + piece)


def copy_columns(path: Path, dtype: np.dtype[Any]) -> None:
    """The least that reading the fields of all kernels can be."""
    buffer = bytearray(BUFFER)
    size, at = path.stat().st_size, 0
    columns = {f: np.empty(size // dtype.itemsize, dtype.fields[f][0]) for f in COPIED}  # type: ignore[index]
    with path.open("rb", buffering=0) as file:
        while header := file.read(HEADER.size):
            length = HEADER.unpack(header)[3]
            file.readinto(memoryview(buffer)[:length])
            rows = np.frombuffer(buffer, dtype, length // dtype.itemsize)
            for field, column in columns.items():
                column[at : at + len(rows)] = rows[field]
            at += len(rows)


def best(work: Callable[[], object]) -> float:
    """Seconds of the quickest of some runs."""
    seconds = []
    for _ in range(RUNS):
        begin = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - begin)
    return min(seconds)


def show(name: str, count: int, seconds: float, floor: float | None = None) -> None:
    text = f"{name:32s} {count:9d} records  {count / seconds / 1e6:6.1f} million a second"
    print(text + (f"  {seconds / floor:5.2f} x the floor" if floor else ""))


if __name__ == "__main__":
    sys.exit(main())

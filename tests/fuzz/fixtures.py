"""The files that are damaged: every format, from this project's captures and, where they are
there, from other people's traces. Large ones are cut, so that a case takes a tenth of a second.
"""

from __future__ import annotations

import gzip
import json
import lzma
import shutil
import sqlite3
import tarfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from tests.nsys_files import KERNEL, PID, Export, global_pid
from tests.support import Recorded, eager_decode, engine, tensor_row
from tests.traces.readers import test_ncu_csv, test_nsys_stats

DATA = Path(__file__).resolve().parent.parent / "data"
SHARED = Path(__file__).resolve().parents[3] / "shared" / "traces"

TRACE, BUNDLE, PIECES, RESULT = "trace", "bundle", "pieces", "result"
CODE, LOG, MODEL = "code", "log", "model"

_GPU_EVENTS = 24
_MOST_EVENTS = 250
_ROWS = 80


@dataclass(frozen=True)
class Fixture:
    """A file or folder that is right.

    Attributes:
        kind: TRACE, which is imported; BUNDLE; PIECES of a recording; RESULT of a load generator;
            CODE of a GPU; LOG of an engine; MODEL, a checkpoint's folder.
    """

    name: str
    kind: str
    path: Path


def build(folder: Path) -> list[Fixture]:
    """Writes all fixtures into an empty folder; always the same."""
    found = []
    for make in (_kineto, _proton, _nsys, _printed, _archives):
        found += [Fixture(path.name, TRACE, path) for path in make(folder)]
    for version in ("13.0.85", "13.4.92"):
        path = folder / f"cupti-{version}"
        shutil.copytree(DATA / "cupti" / version, path)
        found.append(Fixture(path.name, TRACE, path))
    for path in sorted((DATA / "benchmarks").iterdir()):
        if path.is_file() and path.name != "README.md":
            shutil.copyfile(path, folder / path.name)
            found.append(Fixture(path.name, RESULT, folder / path.name))
    found += _diagnosed(folder)
    others = [DATA / "code-h100" / "dense-nvfp4", DATA / "benchmarks" / "vllm-serve-bundle"]
    for path in [*sorted(DATA.glob("h100-*")), *others]:
        found.append(Fixture(path.name, BUNDLE, _cut_bundle(path, folder / path.name)))
    path = folder / "pieces"
    pieces = [eager_decode(0, 0), eager_decode(2, 2000)]
    rows = [engine(n, 1000 * n, 1000 * n + 900) for n in range(4)]
    tensors = [tensor_row(f"model.layers.{n}.self_attn.qkv_proj", n << 20, 9) for n in range(3)]
    Recorded({0: pieces}, {0: rows}, tensors=tensors).write(path)
    found.append(Fixture(path.name, PIECES, path))
    return found


def _diagnosed(folder: Path) -> Iterator[Fixture]:
    """What `classify` and `doctor` read beside traces."""
    for path in sorted((DATA / "cubins").glob("scale-*.cubin")):
        shutil.copyfile(path, folder / path.name)
        yield Fixture(path.name, CODE, folder / path.name)
    for name in ("probes-sm_121a.cubin", "library.so"):
        (folder / name).write_bytes(lzma.decompress((DATA / "cubins" / f"{name}.xz").read_bytes()))
        yield Fixture(name, CODE, folder / name)
    for path in sorted((DATA / "logs").iterdir()):
        shutil.copyfile(path, folder / path.name)
        yield Fixture(path.name, LOG, folder / path.name)
    for name in ("gpt-oss-20b", "qwen3-next-80b-a3b-nvfp4"):
        shutil.copytree(DATA / "models" / name, folder / name)
        yield Fixture(name, MODEL, folder / name)


def _kineto(folder: Path) -> Iterator[Path]:
    own = sorted((DATA / "kineto").glob("*.json.gz"))
    for number, path in enumerate(own):
        name = f"kineto-{number:02}-{path.name[:18].removesuffix('.json.gz')}.json.gz"
        yield _pack(folder / name, _cut_events(_loaded(path)))
    for model in ("gpt-oss", "qwen3"):
        target = folder / f"{model}-graphs"
        for path in (DATA / "kineto" / target.name).rglob("*.gz"):
            place = target / path.relative_to(DATA / "kineto" / target.name)
            _pack(place, _cut_events(_loaded(path)))
        yield target
    plain = folder / "kineto-plain.json"
    plain.write_text(json.dumps(_cut_events(_loaded(own[0]))))
    yield plain
    bare = folder / "kineto-bare.json"
    bare.write_text(json.dumps(_cut_events(_loaded(own[-1]))["traceEvents"], indent=1))
    yield bare
    zstd = folder / "kineto.json.zst"
    with pa.OSFile(str(zstd), "wb") as file, pa.CompressedOutputStream(file, "zstd") as stream:
        stream.write(plain.read_bytes())
    yield zstd


def _proton(folder: Path) -> Iterator[Path]:
    for path in sorted((DATA / "proton").iterdir()):
        yield Path(shutil.copyfile(path, folder / path.name))
    tree = json.loads((DATA / "proton" / "tree.hatchet").read_text())
    nodes = [dict(sorted(n.items(), key=lambda pair: pair[0] != "frame")) for n in tree]
    packed = folder / "tree.msgpack.hatchet"
    packed.write_bytes(msgspec.msgpack.encode(nodes))
    yield packed


def _nsys(folder: Path) -> Iterator[Path]:
    export = Export()
    for number in range(4):
        export.launch(1000 * number, number, "cudaGraphLaunch_v10000" if number > 1 else "launch")
        export.kernel(f"gemm_{number}", 1000 * number + 50, 1000 * number + 90, number, node=number)
        export.node(10 * number, number + 1, number or None)
        export.mark(1000 * number, f"execute_context_0(0)_generation_1({number})")
    yield export.write(folder / "nsys-hand.sqlite")
    old = Export()
    old.launch(10, 1).add(KERNEL, start=20, end=30, correlationId=1, globalPid=global_pid(PID))
    yield old.write(folder / "nsys-bare.sqlite")
    for path in sorted((SHARED / "nsys").glob("*.sqlite")):
        yield _cut_export(path, folder / f"nsys-{path.name}")
    report = folder / "report.nsys-rep"
    report.write_bytes(b"NVIDIA Tegra Profiler Report 2025@6@1@190-256136788515v0\n\0\1\2" * 20)
    yield report


def _printed(folder: Path) -> Iterator[Path]:
    texts = {
        "nsys-sums.csv": test_nsys_stats.SUMS + '50.0,200,2,100.0,100.0,90,110,1.0,"k<a, b>(int)"\n'
        "50.0,200,1,200.0,200.0,200,200,0.0,plain\n",
        "nsys-trace.csv": test_nsys_stats.TRACE
        + "1000,50,11,,,,,,,,,,8.389,167.0,Pageable,Device,GB10 (0),1,,7,[CUDA memcpy HtoD]\n"
        + '5000,7,12,64,2,1,256,1,1,40,0.001,0.098,,,,,GB10 (1),1,,13,"k<a, b>(int)"\n',
        "ncu-details.csv": test_ncu_csv.DETAILS
        + test_ncu_csv.detail(0, 7, "gemm", "gpu__time_duration.sum", "nsecond", "1,234")
        + test_ncu_csv.detail(0, 7, "gemm", "sm__inst_executed_pipe_tensor.sum", "inst", "5"),
        "ncu-raw.csv": test_ncu_csv.RAW
        + '"0","7","python","host","gemm","1","7","(128, 1, 1)","(4, 2, 1)","0",'
        + '"12.1","99","5",""\n',
    }
    for name, text in texts.items():
        (folder / name).write_text(text)
        yield folder / name


def _archives(folder: Path) -> Iterator[Path]:
    files = [folder / "kineto-plain.json", DATA / "benchmarks" / "vllm-serve.txt"]
    packed = folder / "traces.zip"
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in files:
            archive.writestr(zipfile.ZipInfo(path.name), path.read_bytes())
    yield packed

    tar = folder / "traces.tar"
    with tarfile.open(tar, "w") as archive:
        for path in files:
            member = tarfile.TarInfo(path.name)
            member.size = path.stat().st_size
            with path.open("rb") as content:
                archive.addfile(member, content)
    yield tar


def _loaded(path: Path) -> Any:
    return json.loads(gzip.decompress(path.read_bytes()))


def _pack(path: Path, value: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(json.dumps(value).encode(), 1, mtime=0))
    return path


def _cut_events(trace: Any) -> Any:
    """The stretch around the first GPU events; what has no time stays."""
    if isinstance(trace, list):
        trace = {"traceEvents": trace}
    events = trace["traceEvents"]
    gpu = [e for e in events if e.get("cat") in ("kernel", "Kernel", "gpu_memcpy", "Memcpy")]
    gpu = sorted(gpu, key=lambda e: e["ts"])[:_GPU_EVENTS]
    ids = {e["args"].get("correlation") for e in gpu}
    near = [e for e in events if e.get("args", {}).get("correlation") in ids]
    first = min((e["ts"] for e in near), default=0)
    last = max((e["ts"] + e.get("dur", 0) for e in near), default=float("inf"))
    around = [e for e in events if _between(e, first, last)]
    chosen = {id(e) for e in [*near, *around[: _MOST_EVENTS - len(near)]]}
    kept = [e for e in events if id(e) in chosen or "ts" not in e]
    return trace | {"traceEvents": kept[: 2 * _MOST_EVENTS]}


def _between(event: Any, first: float, last: float) -> bool:
    start = event.get("ts")
    return (
        isinstance(start, (int, float)) and start <= last and start + event.get("dur", 0) >= first
    )


def _cut_export(path: Path, target: Path) -> Path:
    """An export with the first rows of each table of events."""
    shutil.copyfile(path, target)
    connection = sqlite3.connect(target)
    with connection:
        tables = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        for (table,) in tables.fetchall():
            columns = [row[1] for row in connection.execute(f'PRAGMA table_info("{table}")')]
            if "start" in columns:
                connection.execute(
                    f'DELETE FROM "{table}" WHERE rowid NOT IN (SELECT rowid FROM "{table}"'
                    f" ORDER BY start LIMIT {_ROWS})"
                )
    connection.execute("VACUUM")
    connection.close()
    return target


def _cut_bundle(path: Path, target: Path) -> Path:
    """A bundle with the first rows of its long tables."""
    target.mkdir()
    meta = json.loads((path / "meta.json").read_text())
    for name in meta["tables"]:
        table = pq.read_table(path / name, partitioning=None).slice(0, 3 * _ROWS)
        pq.write_table(table, target / name)
        meta["tables"][name] = table.num_rows
    (target / "meta.json").write_text(json.dumps(meta))
    return target

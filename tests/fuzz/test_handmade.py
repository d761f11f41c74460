"""Files made to hurt: bombs, sizes that lie, names that lead out, nesting without end."""

from __future__ import annotations

import gzip
import io
import json
import struct
import sys
import tarfile
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from spark_prof.analyzers.summary import summarize
from spark_prof.importers.sources import open_source
from tests.fuzz.checks import check_report
from tests.fuzz.command_line import Finished, spark_prof
from tests.fuzz.hostile import TEXTS
from tests.nsys_files import Export
from tests.rows import each_row
from tests.support import Recorded, eager_decode

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="memory is limited as on Linux")

GIB = 1 << 30


def deflated_zeros(size: int, begin: bytes = b"") -> bytes:
    """A gzip stream of so many zeros after a beginning; its check sum is not theirs."""
    packer = zlib.compressobj(9, wbits=31)
    head = packer.compress(begin) + packer.flush(zlib.Z_FULL_FLUSH)
    # After a full flush the next block stands for itself, and so may be repeated.
    block = packer.compress(bytes(1 << 24)) + packer.flush(zlib.Z_FULL_FLUSH)
    return head + block * (size >> 24) + packer.flush()


def zip_that_says(size: int) -> bytes:
    """A zip whose headers declare a member of that size."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("trace.json", b'{"traceEvents": []}')
    data = bytearray(buffer.getvalue())
    entry = data.index(b"PK\1\2")
    struct.pack_into("<II", data, entry + 20, 0xFFFFFFFF, 0xFFFFFFFF)
    extra = struct.pack("<HHQQ", 1, 16, size, size)
    name = struct.unpack_from("<H", data, entry + 28)[0]
    struct.pack_into("<H", data, entry + 30, len(extra))
    at = entry + 46 + name
    data[at:at] = extra
    end = data.index(b"PK\5\6")
    struct.pack_into("<I", data, end + 12, end - entry)
    return bytes(data)


def tar_that_says(size: int) -> bytes:
    info = tarfile.TarInfo("trace.json")
    info.size = size
    return info.tobuf(tarfile.GNU_FORMAT) + b"{}" + bytes(510)


def events(*more: object) -> bytes:
    return json.dumps({"schemaVersion": 1, "traceEvents": [*more]}).encode()


def nested_modules(depth: int) -> bytes:
    """Calls of modules, each within the one before, and a kernel that the last one launches."""
    call = {"ph": "X", "pid": 1, "tid": 2}
    found: list[object] = [
        call | {
            "cat": "python_function", "name": f"nn.Module: Linear_{i}", "ts": i,
            "dur": 4 * depth - i, "args": {"Python id": i + 1, "Python parent id": i or None},
        }
        for i in range(depth)
    ]  # fmt: skip
    launch = {"cat": "cuda_runtime", "name": "cudaLaunchKernel", "args": {"correlation": 1}}
    kernel = {"cat": "kernel", "name": "k", "args": {"correlation": 1, "device": 0, "stream": 7}}
    times = {"ts": depth + 1, "dur": 1}
    return events(*found, call | launch | times, {"ph": "X", "pid": 0, "tid": 7} | kernel | times)


def of_rank(rank: int) -> bytes:
    kernel = {"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": 1, "dur": 1,
              "args": {"device": 0, "stream": 7}}  # fmt: skip
    value = {"schemaVersion": 1, "distributedInfo": {"rank": rank}, "traceEvents": [kernel]}
    return json.dumps(value).encode()


HURTFUL: dict[str, Callable[[], bytes]] = {
    "10 GiB of zeros": lambda: deflated_zeros(10 * GIB),
    "10 GiB of zeros in an event": lambda: deflated_zeros(
        10 * GIB, b'{"schemaVersion": 1, "traceEvents": [{"name": "'
    ),
    "a bomb in a bomb": lambda: gzip.compress(deflated_zeros(GIB)),
    "a zip of 100 GB by its header": lambda: zip_that_says(100 * 10**9),
    "a tar of 100 GB by its header": lambda: tar_that_says(100 * 10**9),
    "a tar of less than nothing": lambda: tar_that_says(-5),
    "a hundred thousand brackets": lambda: b'{"traceEvents": ' + b"[" * 100_000,
    "nested arguments": lambda: events().replace(
        b"[]", b'[{"ph":"X","args":' + b'{"a":' * 100_000 + b"1" + b"}" * 100_000 + b"}]"
    ),
    "nested calls of Proton": lambda: (
        b'[{"frame":{"name":"R"},"metrics":{},"children":['
        + b'{"frame":{"name":"k"},"metrics":{},"children":[' * 100_000
        + b"]}" * 100_001 + b"]"
    ),
    "a rank of a billion": lambda: of_rank(10**9),
    "the first rank that is none": lambda: of_rank(2**16),
    "no rows": lambda: events(),
    "only a magic number": lambda: b"SQLite format 3\0",
    "a Parquet table": lambda: b"PAR1" + b"\xff" * 64 + b"PAR1",
    "a CSV that never ends its quote": lambda: (
        b'Time (%),Total Time (ns),Instances,Name\n1,2,3,"' + b"x" * (8 << 20)
    ),
    "a CSV of a million columns": lambda: (
        b"Total Time (ns),Instances,Name" + b",x" * 1_000_000 + b"\n1,1,k\n"
    ),
    "nothing": lambda: b"",
    "UTF-16": lambda: '{"traceEvents": []}'.encode("utf-16"),
}  # fmt: skip


@pytest.mark.slow
def test_ranges_nested_without_end_name_no_module(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(nested_modules(100_000))
    done = spark_prof("import", path, "-o", tmp_path / "bundle")
    assert done.code == 0, done


@pytest.mark.slow
@each_row("what", HURTFUL)
def test_one_line_and_nothing_left(what: str, tmp_path: Path) -> None:
    path = tmp_path / "in" / "trace.json.gz"
    path.parent.mkdir()
    path.write_bytes(HURTFUL[what]())
    done = spark_prof("import", path, "-o", tmp_path / "out" / "bundle")
    done.assert_refused()
    assert not list((tmp_path / "out").glob("*"))


def test_what_is_within_the_bounds_is_imported_and_read(tmp_path: Path) -> None:
    for number, content in enumerate((of_rank(2**16 - 1), nested_modules(50))):
        path = tmp_path / f"{number}.json"
        path.write_bytes(content)
        assert names_of_kernels(path) == {"k"}


def names_of_kernels(trace: Path) -> set[str]:
    with open_source(trace) as bundle:
        return {row.name for row in summarize(bundle).kernels}


def hostile_kineto() -> bytes:
    """A trace in which every name, category and argument is hostile."""
    found: list[Any] = []
    for number, text in enumerate(TEXTS):
        times = {"ts": 10.0 * number, "dur": 5.0, "pid": 1, "tid": 1}
        launch = {"correlation": number, text: text}
        found += [
            {"ph": "X", "cat": "user_annotation", "name": text, **times, "args": {}},
            {"ph": "X", "cat": "python_function", "name": f"nn.Module: {text}_0", **times},
            {"ph": "X", "cat": "cuda_runtime", "name": text, **times, "args": launch},
            {"ph": "X", "cat": "kernel", "name": text, **times,
             "args": {"correlation": number, "device": 0, "stream": 7}},
        ]  # fmt: skip
    value = {"schemaVersion": 1, "deviceProperties": [{"id": 0, "name": TEXTS[0]}],
             "traceEvents": found, "baseTimeNanoseconds": 10**18}  # fmt: skip
    return json.dumps(value).encode()


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("hostile") / "\x1b]0;x\x07<b>.json"
    path.write_bytes(hostile_kineto())
    return path


def shown_by(*arguments: object) -> Finished:
    done = spark_prof(*arguments)
    done.assert_sound()
    assert done.code == 0, done.errors
    return done


@pytest.mark.slow
def test_hostile_names_on_a_terminal(hostile: Path, tmp_path: Path) -> None:
    for arguments in (("report", hostile), ("import", hostile, "-o", tmp_path / "b")):
        done = shown_by(*arguments)
        bad = {c for c in done.output + done.errors if not c.isprintable() and c != "\n"}
        assert not bad


def test_hostile_names_in_files(hostile: Path) -> None:
    with open_source(hostile) as bundle:
        report = summarize(bundle)
    assert report.kernels
    for name in ("html", "md", "json"):
        check_report(report, name)


def test_numbers_that_are_cyclic_in_an_export(tmp_path: Path) -> None:
    export = Export()
    for node, original in ((1, 2), (2, 3), (3, 1), (4, 4)):
        export.node(node, node, original)
        export.launch(100 * node, node, "cudaGraphLaunch")
        export.kernel("k", 100 * node + 1, 100 * node + 9, node, node=node)
    assert names_of_kernels(export.write(tmp_path / "cyclic.sqlite")) == {"k"}


def test_an_array_that_declares_100_gb(tmp_path: Path) -> None:
    pieces = Recorded({0: [eager_decode()]}).write(tmp_path / "run")
    head = "{'descr': '<i8', 'fortran_order': False, 'shape': (12500000000,), }".ljust(117) + "\n"
    array = np.lib.format.magic(1, 0) + struct.pack("<H", len(head)) + head.encode()
    (pieces / "rank0.00001.steps.npy").write_bytes(array)
    done = shown_by("salvage", tmp_path / "run")
    assert "rank0.00001.steps.npy is missing or damaged" in done.output + done.errors

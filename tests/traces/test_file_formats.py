"""Files and folders are told by what they hold, whatever they are called."""

from __future__ import annotations

import gzip
import inspect
import os
import tarfile
from importlib import import_module
from io import BytesIO
from pathlib import Path

import pyarrow as pa
import pytest

from spark_prof.importers.modules import names_module
from spark_prof.traces import formats
from spark_prof.traces.formats import FORMATS, FileFormat, format_of
from tests.rows import each_row
from tests.support import refusal

PACKED = {"archive", "cupti", "ncu-rep", "nsys-rep", "nsys-sqlite", "parquet"}
"""Formats that are not looked for in a compressed file."""


def zstd(data: bytes) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(data)
    return sink.getvalue().to_pybytes()


@each_row("known", FORMATS)
@each_row("name", ["trace", "x.json.gz", "x.sqlite", "x.csv"])
def test_each_format_knows_its_example(known: FileFormat, name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(known.example)
    assert format_of(path) == known.name
    if known.name in PACKED:
        return
    for pack in (gzip.compress, zstd):
        path.write_bytes(pack(b"\xef\xbb\xbf\n " + known.example))
        assert format_of(path) == known.name


@each_row("known", [row for row in FORMATS if row.reader])
def test_each_reader_takes_what_it_is_given(known: FileFormat, tmp_path: Path) -> None:
    module, function = known.reader.split(".")
    reader = getattr(import_module(f"spark_prof.traces.readers.{module}"), function)
    given = [tmp_path, names_module] if known.scoped else [tmp_path]
    assert inspect.signature(reader).bind(*given)


@pytest.mark.parametrize("pack", [bytes, gzip.compress, zstd])
def test_a_tar_packed_or_not(tmp_path: Path, pack: object) -> None:
    buffer = BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        archive.addfile(tarfile.TarInfo("a"), BytesIO())
    (tmp_path / "x").write_bytes(pack(buffer.getvalue()))  # type: ignore[operator]
    assert format_of(tmp_path / "x") == "archive"


def test_folders(tmp_path: Path) -> None:
    assert format_of(tmp_path) == formats.FOLDER
    (tmp_path / "pieces").mkdir()
    assert format_of(tmp_path) == formats.PIECES
    (tmp_path / "meta.json").write_text("{}")
    assert format_of(tmp_path) == formats.BUNDLE


def test_a_link_and_a_pipe(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    os.mkfifo(tmp_path / "pipe")
    for name in ("link", "pipe", "nothing", "x" * 300):
        with refusal():
            format_of(tmp_path / name)


@each_row(
    "content",
    [b"", b"\n", b"{}", b"[]", b'{"a": 1}', b"a,b,c\n1,2,3\n", bytes(1000), b"\x1f\x8b",
     b"\x28\xb5\x2f\xfdx", b"BZh91AY", b"a\rb,c\r\n", b'"' + b",x" * 99_999, os.urandom(5000)],
)  # fmt: skip
def test_what_is_nothing_known_is_one_line(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x").write_bytes(content)
    with refusal():
        format_of(tmp_path / "x")


def test_no_more_than_the_beginning_is_read(tmp_path: Path) -> None:
    path = tmp_path / "x"
    with path.open("wb") as file:
        file.write(b'{"traceEvents": [')
        file.truncate(50 << 30)  # a hole
    assert format_of(path) == "kineto"

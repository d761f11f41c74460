"""Compressed files as streams: whole, cut, damaged and made to explode."""

from __future__ import annotations

import gzip
import random
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from spark_prof.errors import CommandError
from spark_prof.traces.compressed import open_stream
from tests.rows import each_row

CONTENT = random.Random(1).randbytes(1 << 16) * 40 + b"the end"


def zstandard(data: bytes) -> bytes:
    return bytes(pa.compress(data, codec="zstd", asbytes=True))


FORMATS: dict[str, Callable[[bytes], bytes]] = {
    "plain": lambda data: data, "gzip": gzip.compress, "zstd": zstandard,
}  # fmt: skip


def content(path: Path) -> bytes:
    with open_stream(path) as blocks:
        return b"".join(blocks)


@pytest.fixture
def write(tmp_path: Path) -> Callable[[bytes], Path]:
    def writer(data: bytes) -> Path:
        # The name says nothing about what is inside.
        path = tmp_path / "trace.gz"
        path.write_bytes(data)
        return path

    return writer


@each_row("compress", FORMATS.values())
@each_row("data", [b"", b"x", b"\x1f", CONTENT])
def test_the_content_comes_back(write, compress, data) -> None:
    assert content(write(compress(data))) == data


@pytest.mark.parametrize("format_", ["gzip", "zstd"])
def test_streams_one_after_another_are_one(write, format_) -> None:
    compress = FORMATS[format_]
    assert content(write(compress(CONTENT) + compress(b"more"))) == CONTENT + b"more"


@pytest.mark.parametrize("garbage", [b"\0" * 700, b"garbage", b"\0" * 200_000])
def test_what_follows_a_gzip_stream_is_left_out(write, garbage) -> None:
    assert content(write(gzip.compress(CONTENT) + garbage)) == CONTENT


@each_row("format_", ["gzip", "zstd"])
@each_row("share", [0.1, 0.5, 0.9, 0.9999])
def test_a_file_that_ends_early_is_refused(write, format_, share) -> None:
    packed = FORMATS[format_](CONTENT)
    with pytest.raises(CommandError) as caught:
        content(write(packed[: int(len(packed) * share)]))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("format_", ["gzip", "zstd"])
def test_a_file_made_to_explode_is_refused_and_never_held(write, format_, monkeypatch) -> None:
    # The same rule with smaller numbers, so that the test is quick.
    monkeypatch.setattr("spark_prof.traces.compressed._HARMLESS", 8 << 20)
    monkeypatch.setattr("spark_prof.traces.compressed._RATIO", 100)
    path = write(FORMATS[format_](bytes(64 << 20)))
    tracemalloc.start()
    with pytest.raises(CommandError, match="times its size"), open_stream(path) as blocks:
        for _ in blocks:
            pass
    assert tracemalloc.get_traced_memory()[1] < 16 << 20
    tracemalloc.stop()


@each_row("start", [b"PK\x03\x04", b"BZh91AY", b"\xfd7zXZ\0", b"7z\xbc\xaf"])
def test_other_compressions_are_named(write, start) -> None:
    with pytest.raises(CommandError, match="unpack it first"):
        content(write(start + b"..."))

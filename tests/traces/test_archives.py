"""Compressed files and archives: ordinary ones give their content, hostile ones give one line."""

from __future__ import annotations

import gzip
import io
import random
import tarfile
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from spark_prof.errors import CommandError
from spark_prof.traces import compressed
from spark_prof.traces.compressed import open_stream, unpacked
from tests.rows import each_row
from tests.support import refusal

FILES = {"rank0.json": b"{}", "deep/er/rank1.json": b"[1]" * 1000, "empty.csv": b""}


def tar_bytes(*members: tuple[tarfile.TarInfo, bytes], kind: int = tarfile.PAX_FORMAT) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=kind) as archive:
        for info, content in members:
            info.size = len(content) if info.isreg() else info.size
            archive.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def tar_of(files: dict[str, bytes]) -> bytes:
    return tar_bytes(*((tarfile.TarInfo(name), content) for name, content in files.items()))


def zip_of(files: dict[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return buffer.getvalue()


def zstd(data: bytes) -> bytes:
    return bytes(pa.compress(data, codec="zstd", asbytes=True))


@pytest.fixture
def unpack(tmp_path: Path) -> Callable[[bytes], dict[str, bytes]]:
    def run(data: bytes) -> dict[str, bytes]:
        into = tmp_path / "outer" / "into"
        into.mkdir(parents=True)
        path = tmp_path / "archive"
        path.write_bytes(data)
        try:
            found = unpacked(path, into)
        finally:
            everything = {p for p in tmp_path.rglob("*") if p.is_file() or p.is_symlink()}
            assert all(into in p.parents for p in everything - {path})
        return {str(p.relative_to(into)): p.read_bytes() for p in found}

    return run


@pytest.mark.parametrize(
    "data",
    [
        zip_of(FILES),
        zip_of(FILES, zipfile.ZIP_STORED),
        tar_of(FILES),
        gzip.compress(tar_of(FILES)),
        zstd(tar_of(FILES)),
        tar_of({f"./{name}": content for name, content in FILES.items()}),
        zip_of(FILES | {"__MACOSX/._rank0.json": b"x"}),
    ],
    ids=["zip", "stored", "tar", "tar.gz", "tar.zst", "dots", "macos"],
)
def test_every_kind_gives_its_files(
    unpack: Callable[[bytes], dict[str, bytes]], data: bytes
) -> None:
    assert unpack(data) == FILES


OUTSIDE = ["../x", "a/../../x", "/x", "..\\x", "\\x", "C:\\x", "C:x", "//host/x"]


@pytest.mark.parametrize("name", OUTSIDE)
@pytest.mark.parametrize("make", [zip_of, tar_of])
def test_no_name_leads_out(
    unpack: Callable[[bytes], dict[str, bytes]], make: Callable[..., bytes], name: str
) -> None:
    with pytest.raises(CommandError, match=r"leads out of its folder|no name") as caught:
        unpack(make({name: b"x"}))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "name", ["a" * 300, "/".join("abcdefghijklmnopqrst"), "a\nb", "\x1b[31m", "."]
)
def test_odd_names_are_refused(unpack: Callable[[bytes], dict[str, bytes]], name: str) -> None:
    with pytest.raises(CommandError, match="no name") as caught:
        unpack(tar_of({name: b"x"}))
    assert str(caught.value).isprintable()


@pytest.mark.parametrize(
    "kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE]
)
def test_links_and_devices_are_refused(
    unpack: Callable[[bytes], dict[str, bytes]], kind: bytes
) -> None:
    info = tarfile.TarInfo("link")
    info.type, info.linkname = kind, "/etc/passwd"
    with pytest.raises(CommandError, match="a link, a device"):
        unpack(tar_bytes((info, b"")))


def test_links_in_a_zip_are_refused(unpack: Callable[[bytes], dict[str, bytes]]) -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        info = zipfile.ZipInfo("link")
        info.create_system, info.external_attr = 3, 0o120777 << 16
        archive.writestr(info, "/etc/passwd")
    with pytest.raises(CommandError, match="a link, a device"):
        unpack(buffer.getvalue())


@pytest.mark.parametrize("twin", ["a", "A", "./a"])
def test_one_name_twice_is_refused(unpack: Callable[[bytes], dict[str, bytes]], twin: str) -> None:
    members = [(tarfile.TarInfo(name), b"x") for name in ("a", twin)]
    with pytest.raises(CommandError, match="twice"):
        unpack(tar_bytes(*members))


@pytest.mark.parametrize("make", [zip_of, lambda files: gzip.compress(tar_of(files))])
def test_a_bomb_is_refused_while_it_grows(
    unpack: Callable[[bytes], dict[str, bytes]],
    make: Callable[[dict[str, bytes]], bytes],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(compressed, "_HARMLESS", 1 << 20)
    with pytest.raises(CommandError, match="grows to more than"):
        unpack(make({f"{i}": bytes(4 << 20) for i in range(8)}))


@pytest.mark.parametrize("beyond", [0, 1])
def test_an_archive_may_grow_to_what_is_harmless(
    unpack: Callable[[bytes], dict[str, bytes]], monkeypatch: pytest.MonkeyPatch, beyond: int
) -> None:
    monkeypatch.setattr(compressed, "_HARMLESS", 1 << 20)
    monkeypatch.setattr(compressed, "_MEMBER_RATIO", 1)
    files = {"a": bytes(1 << 19), "b": bytes((1 << 19) + beyond)}
    if beyond:
        with pytest.raises(CommandError, match="grows to more than 1 MiB"):
            unpack(zip_of(files))
    else:
        assert unpack(zip_of(files)) == files


def test_too_many_files_are_refused(
    unpack: Callable[[bytes], dict[str, bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compressed, "_MOST_MEMBERS", 10)
    with pytest.raises(CommandError, match="more than 10 files"):
        unpack(tar_of({f"{i}": b"" for i in range(11)}))


def test_a_zip_that_lists_too_many_is_refused_before_its_index_is_read(
    unpack: Callable[[bytes], dict[str, bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    data = zip_of({f"{i}": b"" for i in range(100)})
    monkeypatch.setattr(compressed, "_MOST_ZIP_INDEX", 1000)
    monkeypatch.setattr(zipfile, "ZipFile", None)
    with pytest.raises(CommandError, match="lists more files"):
        unpack(data)


def test_tar_headers_have_an_end(
    unpack: Callable[[bytes], dict[str, bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compressed, "_MOST_HEADERS", 1 << 16)
    info = tarfile.TarInfo("a")
    info.pax_headers = {"comment": "x" * (1 << 20)}
    with pytest.raises(CommandError, match="headers have no end"):
        unpack(tar_bytes((info, b"")))


def test_an_encrypted_zip_is_refused(unpack: Callable[[bytes], dict[str, bytes]]) -> None:
    data = bytearray(zip_of({"a": b"x"}))
    data[6] |= 1
    data[data.index(b"PK\1\2") + 8] |= 1
    with pytest.raises(CommandError, match="encrypted"):
        unpack(bytes(data))


def test_a_method_that_takes_memory_is_refused(unpack: Callable[[bytes], dict[str, bytes]]) -> None:
    with pytest.raises(CommandError, match="unusual way"):
        unpack(zip_of({"a": b"x" * 1000}, zipfile.ZIP_LZMA))


CONTENT = random.Random(1).randbytes(1 << 16) * 40 + b"the end"


FORMATS: dict[str, Callable[[bytes], bytes]] = {
    "plain": lambda data: data, "gzip": gzip.compress, "zstd": zstd,
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
    with refusal():
        content(write(packed[: int(len(packed) * share)]))


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

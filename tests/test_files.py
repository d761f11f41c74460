"""Files that are there whole or not at all, and the syncing of them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import BinaryIO

import pytest

from spark_prof.files import cache_folder, publish, write_whole
from spark_prof.traces import chunks
from tests.rows import each_row


def fail(file: BinaryIO) -> None:
    file.write(b"half")
    raise OSError(28, "No space left on device")


def test_a_file_is_replaced_by_a_whole_one(tmp_path: Path) -> None:
    for content in (b"first", "second", lambda file: file.write(b"third")):
        write_whole(tmp_path / "f", content)
        assert (tmp_path / "f").read_bytes() in (b"first", b"second", b"third")
    assert (tmp_path / "f").read_bytes() == b"third"
    assert [path.name for path in tmp_path.iterdir()] == ["f"]


@pytest.mark.parametrize("before", [None, b"before"])
def test_what_cannot_be_written_leaves_nothing(tmp_path: Path, before: bytes | None) -> None:
    if before is not None:
        (tmp_path / "f").write_bytes(before)
    with pytest.raises(OSError, match="No space"):
        write_whole(tmp_path / "f", fail)
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [before] * (before is not None)


def test_a_durable_file_is_synced_before_it_has_its_name_and_its_folder_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    sync, rename = os.fsync, os.replace

    def synced(number: int) -> None:
        done.append(os.readlink(f"/proc/self/fd/{number}"))
        sync(number)

    def renamed(source: Path, target: Path) -> None:
        done.append("rename")
        rename(source, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", renamed)
    write_whole(tmp_path / "f", b"x", durable=True)
    assert len(done) == 3
    assert Path(done[0]).name.startswith(".f.")
    assert done[1:] == ["rename", str(tmp_path)]


def test_a_foreign_file_that_is_whole_gets_its_name(tmp_path: Path) -> None:
    for content in (b"{}", b'{"a": 1} \n', b"x" * 200 + b"}"):
        (tmp_path / ".t").write_bytes(content)
        publish(tmp_path / ".t", tmp_path / "f", b"}")
        assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("f", content)]


@each_row("content", [b"", b'{"a', b"}" + b" " * 100 + b"x", None])
def test_a_foreign_file_that_was_cut_off_does_not(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / ".t").write_bytes(content)
    with pytest.raises(OSError, match="not written to its end; is the disk full"):
        publish(tmp_path / ".t", tmp_path / "f", b"}")
    assert list(tmp_path.iterdir()) == []


def test_only_what_is_new_or_has_changed_is_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    monkeypatch.setattr(chunks, "sync", lambda path: synced.append(path.name))
    marks: dict[str, tuple[int, int]] = {}
    for name in ("rank0.a", "rank0.b", "rank1.a", ".rank0.c"):
        (tmp_path / name).write_bytes(b"x")
    assert chunks.sync_new(tmp_path, "rank0", marks) == 2
    assert sorted(synced) == sorted(["rank0.a", "rank0.b", tmp_path.name])
    assert chunks.sync_new(tmp_path, "rank0", marks) == 0
    synced.clear()
    (tmp_path / "rank0.b").write_bytes(b"longer")
    assert chunks.sync_new(tmp_path, "rank0", marks) == 1
    assert synced == ["rank0.b", tmp_path.name]
    assert chunks.sync_new(tmp_path / "gone", "rank0", marks) == 0


def test_the_cache_folder_is_that_of_the_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for given, home, found in (
        (str(tmp_path), "/home/a", tmp_path / "spark-prof"),
        ("relative", "/home/a", Path("/home/a/.cache/spark-prof")),
        ("", "/home/a", Path("/home/a/.cache/spark-prof")),
    ):
        monkeypatch.setenv("XDG_CACHE_HOME", given)
        monkeypatch.setenv("HOME", home)
        assert cache_folder() == found, given

    def homeless() -> Path:
        raise RuntimeError

    monkeypatch.setattr(Path, "home", homeless)
    assert cache_folder() is None

"""The cache of compiled kernels: what is kept comes back, and nothing else does."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from spark_prof.kernels.runtime import compiled
from spark_prof.kernels.runtime.compiled import keep_compiled, kept_compiled


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "spark-prof" / "kernels"


@pytest.mark.parametrize("code", [b"", b"\x7fELF" + bytes(range(256)), b"x" * 100_000])
def test_what_is_kept_comes_back(folder: Path, code: bytes) -> None:
    keep_compiled("key", code)
    assert kept_compiled("key") == code
    assert kept_compiled("other") is None
    assert [path.name for path in folder.iterdir()] == ["key"], "a temporary file was left"
    assert folder.stat().st_mode & 0o077 == 0


def test_any_damaged_byte_and_any_cut_is_seen(folder: Path) -> None:
    keep_compiled("key", b"machine code")
    path = folder / "key"
    whole = path.read_bytes()
    for at in range(len(whole)):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        assert kept_compiled("key") is None, at
        path.write_bytes(whole[:at])
        assert kept_compiled("key") is None, at
    path.write_bytes(whole + b"\0")
    assert kept_compiled("key") is None
    keep_compiled("key", b"machine code")
    assert kept_compiled("key") == b"machine code"


def test_a_file_under_another_name_is_not_taken(folder: Path) -> None:
    keep_compiled("one", b"machine code")
    (folder / "one").rename(folder / "two")
    assert kept_compiled("two") is None


@pytest.mark.parametrize("make", [os.mkfifo, Path.mkdir, lambda path: path.symlink_to("/dev/zero")])
def test_what_is_no_file_is_not_read(folder: Path, make: object) -> None:
    folder.mkdir(parents=True)
    assert callable(make)
    make(folder / "key")
    assert kept_compiled("key") is None


def test_a_cache_that_cannot_be_written_is_done_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    keep_compiled("key", b"machine code")
    assert kept_compiled("key") is None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")
def test_machine_code_of_another_user_is_not_taken(folder: Path) -> None:
    keep_compiled("key", b"machine code")
    os.chown(folder / "key", 65534, -1)
    assert kept_compiled("key") is None


def test_the_oldest_go_where_all_are_too_many(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiled, "_MOST_BYTES", 10_000)
    for age, key in enumerate("abcdefghi"):
        keep_compiled(key, bytes(968))  # 1,000 with its digest
        os.utime(folder / key, ns=(0, age))
    assert len(list(folder.iterdir())) == 9
    keep_compiled("new", bytes(1968))
    assert sorted(path.name for path in folder.iterdir()) == ["e", "f", "g", "h", "i", "new"]
    assert kept_compiled("new") == bytes(1968)
    assert kept_compiled("a") is None


def test_without_a_home_folder_nothing_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", unknown)
    keep_compiled("key", b"machine code")
    assert kept_compiled("key") is None

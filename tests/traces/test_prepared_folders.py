"""Folders of prepared sources: one writes at a time, and they stay within their bounds."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from spark_prof.traces.prepared_folders import (
    WHOLE_FILE,
    cache_folder,
    is_locked,
    lock,
    make_room,
    own_folder,
)


def filled(folder: Path, size: int, used: int, whole: bool = True) -> Path:
    folder.mkdir()
    (folder / "start.npy").write_bytes(bytes(size))
    if whole:
        (folder / WHOLE_FILE).write_bytes(b"")
        os.utime(folder / WHOLE_FILE, (used, used))
    return folder


def left(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_one_holds_the_lock_until_it_lets_go(tmp_path: Path) -> None:
    first = lock(tmp_path / "a")
    assert first is not None
    assert is_locked(tmp_path / "a")
    assert lock(tmp_path / "a") is None
    os.close(first)
    assert not is_locked(tmp_path / "a")
    second = lock(tmp_path / "a")
    assert second is not None
    os.close(second)


def test_a_process_that_inherits_the_lock_holds_it_until_it_is_killed(tmp_path: Path) -> None:
    descriptor = lock(tmp_path / "a")
    assert descriptor is not None
    process = subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(600)"], pass_fds=(descriptor,)
    )
    os.close(descriptor)
    try:
        assert is_locked(tmp_path / "a")
    finally:
        process.kill()
        process.wait()
    assert not is_locked(tmp_path / "a")


def test_nothing_holds_the_lock_of_what_is_not_there(tmp_path: Path) -> None:
    assert not is_locked(tmp_path / "a")


def test_the_oldest_make_room(tmp_path: Path) -> None:
    for age, name in enumerate("dcba"):
        filled(tmp_path / f"{name}-1", 100, used=1000 - age)
    new = filled(tmp_path / "new-1", 100, used=2000)
    make_room(new, most_bytes=350)
    assert left(tmp_path) == ["c-1", "d-1", "new-1"]


def test_there_are_never_too_many(tmp_path: Path) -> None:
    for age in range(5):
        filled(tmp_path / f"{age}-1", 1, used=1000 - age)
    make_room(filled(tmp_path / "new-1", 1, used=0), most_folders=3)
    assert left(tmp_path) == ["0-1", "1-1", "new-1"]


def test_one_that_is_larger_than_all_may_be_stays_alone(tmp_path: Path) -> None:
    filled(tmp_path / "a-1", 10, used=1000)
    new = filled(tmp_path / "new-1", 1000, used=2000)
    make_room(new, most_bytes=500)
    assert left(tmp_path) == ["new-1"]


def test_what_a_source_was_before_goes(tmp_path: Path) -> None:
    for name in ("a-1", "a-2", "ab-1"):
        filled(tmp_path / name, 1, used=1000)
    make_room(tmp_path / "a-2")
    assert left(tmp_path) == ["a-2", "ab-1"]


def test_what_somebody_fills_stays_and_what_nobody_finished_goes(tmp_path: Path) -> None:
    for name in ("a-1", "b-1"):
        filled(tmp_path / name, 1, used=1000, whole=False)
    descriptor = lock(tmp_path / "a-1")
    new = filled(tmp_path / "new-1", 1, used=1000)
    make_room(new)
    assert left(tmp_path) == ["a-1", "new-1"]
    assert descriptor is not None
    os.close(descriptor)


def test_the_cache_is_this_users_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "spark-prof" / "explore-1"
    assert cache_folder().stat().st_mode & 0o777 == 0o700
    assert own_folder().stat().st_mode & 0o777 == 0o700
    cache_folder().chmod(0o770)
    with pytest.raises(PermissionError):
        cache_folder()


def test_a_link_is_no_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    (tmp_path / "spark-prof").mkdir()
    (tmp_path / "spark-prof" / "explore-1").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="not this user's alone"):
        cache_folder()

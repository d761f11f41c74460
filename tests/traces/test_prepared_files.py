"""Files of a prepared source: what was written comes back, what was changed does not."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from spark_prof.traces.prepared_files import (
    DamagedError,
    FilesReader,
    FilesWriter,
    clear,
    is_whole,
    read_small,
)
from tests.rows import each_row

COLUMNS = {
    "start": np.arange(1 << 17, dtype=np.int64),
    "layer": np.zeros(0, np.int16),
    "name": np.array([3], np.int32),
}


def written(folder: Path) -> None:
    folder.mkdir()
    writer = FilesWriter(folder)
    for name, values in COLUMNS.items():
        writer.array(name, values)
    writer.small("kinds", b"what they are")
    writer.finish()


def read(folder: Path) -> None:
    reader = FilesReader(folder)
    for name, values in COLUMNS.items():
        found = reader.array(name, values.dtype, len(values))
        assert found.tolist() == values.tolist()
        assert not found.flags.writeable
    assert reader.small("kinds") == b"what they are"


def truncated(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def longer(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"\0")


def flipped_first(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[0] ^= 1
    path.write_bytes(content)


def flipped_last(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 128
    path.write_bytes(content)


def emptied(path: Path) -> None:
    path.write_bytes(b"")


def swapped(path: Path) -> None:
    other = next(p for p in sorted(path.parent.iterdir()) if p != path)
    path.write_bytes(other.read_bytes())


MUTATIONS = (truncated, longer, flipped_first, flipped_last, emptied, swapped, Path.unlink)


def test_what_was_written_comes_back(tmp_path: Path) -> None:
    written(tmp_path / "a")
    assert is_whole(tmp_path / "a")
    read(tmp_path / "a")


@each_row("mutate", MUTATIONS)
def test_no_changed_file_is_taken_for_whole(
    tmp_path: Path, mutate: Callable[[Path], object]
) -> None:
    written(tmp_path / "good")
    for name in sorted(path.name for path in (tmp_path / "good").iterdir()):
        folder = tmp_path / name
        shutil.copytree(tmp_path / "good", folder)
        mutate(folder / name)
        with pytest.raises(DamagedError):
            read(folder)


def test_without_its_last_file_nothing_is_whole(tmp_path: Path) -> None:
    FilesWriter(tmp_path).array("start", COLUMNS["start"])
    assert not is_whole(tmp_path)
    with pytest.raises(DamagedError):
        FilesReader(tmp_path)


@each_row(
    ("dtype", "rows"), [(np.int32, None), (np.uint64, None), (np.int64, 3), (np.float64, None)]
)
def test_an_array_of_another_kind_is_refused(
    tmp_path: Path, dtype: type[np.generic], rows: int | None
) -> None:
    written(tmp_path / "a")
    with pytest.raises(DamagedError):
        FilesReader(tmp_path / "a").array("start", dtype, rows)


def test_nothing_of_objects_is_unpickled(tmp_path: Path) -> None:
    written(tmp_path / "a")
    writer = FilesWriter(tmp_path / "a")
    with pytest.raises(ValueError, match="Object arrays"):
        writer.array("start", np.array([{}], object))


def test_clearing_leaves_nothing(tmp_path: Path) -> None:
    written(tmp_path / "a")
    (tmp_path / "a" / "snapshot" / "cubins").mkdir(parents=True)
    clear(tmp_path / "a")
    assert list((tmp_path / "a").iterdir()) == []
    assert read_small(tmp_path / "a" / "kinds") is None

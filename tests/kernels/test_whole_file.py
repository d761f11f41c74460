"""Files that are written whole or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_prof.kernels.errors import KernelError
from spark_prof.kernels.tuning import write_whole


def test_what_was_there_is_replaced(tmp_path: Path) -> None:
    for content in (b"first", b"", b"second"):
        write_whole(tmp_path / "file", content)
        assert (tmp_path / "file").read_bytes() == content
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_what_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    for path in (tmp_path / "folder", tmp_path / "absent" / "file"):
        with pytest.raises(KernelError, match=f"cannot write {path}"):
            write_whole(path, b"content")
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]

"""The state of a source changes when anything of it does, and else stays."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from spark_prof.traces.resolve import source_state
from tests.support import Recorded, eager_decode


def touched(path: Path) -> None:
    os.utime(path, ns=(1, 1))


def grown(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b" ")


def replaced(path: Path) -> None:
    """Other content of the same size and times."""
    status = path.stat()
    other = path.with_name("other")
    other.write_bytes(bytes(status.st_size))
    os.utime(other, ns=(status.st_atime_ns, status.st_mtime_ns))
    other.replace(path)


CHANGES = (touched, grown, replaced, Path.unlink)


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    return Recorded({0: [eager_decode()]}).assemble(tmp_path / "run").path


def test_what_stays_has_the_same_state(bundle: Path) -> None:
    first = source_state(str(bundle))
    assert first
    assert source_state(str(bundle)) == first
    assert source_state(f"{bundle}/") == first


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_every_file_of_a_bundle_counts(
    bundle: Path, tmp_path: Path, change: Callable[[Path], object]
) -> None:
    for name in sorted(path.name for path in bundle.iterdir()):
        folder = tmp_path / f"copy-{name}"
        shutil.copytree(bundle, folder)
        before = source_state(str(folder))
        change(folder / name)
        if change is touched and name == "meta.json":
            continue  # its content is looked at as well, and did not change
        assert source_state(str(folder)) != before, name


def test_a_folder_of_traces_counts_what_lies_below_it(tmp_path: Path) -> None:
    (tmp_path / "traces" / "rank0").mkdir(parents=True)
    before = source_state(str(tmp_path / "traces"))
    (tmp_path / "traces" / "rank0" / "a.json").write_text("{}")
    assert source_state(str(tmp_path / "traces")) != before

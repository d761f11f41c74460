"""`spark-prof salvage` from the command line: what it says, and its exit codes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from spark_prof.traces.bundle import Bundle
from spark_prof.traces.chunks import RECORDING_FILE, pieces_folder, progress_name, write_json
from tests.cli.conftest import Refuses, Run
from tests.support import Recorded, eager_decode

COMMAND = "salvage"


@pytest.fixture
def dead(tmp_path: Path) -> Path:
    """A recording of two ranks; the second lost the steps of its second piece."""
    ranks = {rank: [eager_decode(), eager_decode(2, 5000)] for rank in (0, 1)}
    pieces = Recorded(ranks).write(tmp_path / "b")
    write_json(pieces, progress_name("rank0"), {"recorded": 7})
    (pieces / "rank1.00001.steps.npy").unlink()
    return tmp_path / "b"


def test_what_was_kept_and_what_is_missing(run: Run, dead: Path) -> None:
    code, out, err = run(dead)
    assert code == 0
    assert out.splitlines() == [
        "rank 0: 4 steps and 8 kernels in 2 pieces",
        "  missing: rank0: at least 3 recorded steps were not flushed",
        "rank 1: 2 steps and 8 kernels in 1 piece",
        "  missing: rank1, piece 1: its steps are missing; 4 kernels and 6 ranges are kept "
        "without a step",
    ]
    assert err == f"spark-prof: {dead} is a bundle now; next: spark-prof report {dead}\n"
    assert not pieces_folder(dead).exists()


def test_a_whole_bundle_is_left_alone(run: Run, dead: Path) -> None:
    first = run(dead)[1]
    files = {path: (path.stat().st_mtime_ns, path.stat().st_ino) for path in dead.iterdir()}
    code, out, err = run(dead)
    assert (code, out) == (0, first)
    assert "whole bundle (salvaged); there is nothing to salvage" in err
    assert {path: (path.stat().st_mtime_ns, path.stat().st_ino) for path in dead.iterdir()} == files


def test_pieces_that_came_after_the_bundle_are_left(run: Run, dead: Path) -> None:
    run(dead)
    pieces_folder(dead).mkdir()
    eager_decode(2, 5000).write(pieces_folder(dead), "rank0", 1)
    eager_decode(4, 9000).write(pieces_folder(dead), "rank0", 2)
    code, out, _ = run(dead)
    assert code == 0
    assert "1 pieces came after the bundle was made" in out
    assert (pieces_folder(dead) / "rank0.00002.steps.npy").exists()


def test_what_an_unfinished_removal_left_goes(run: Run, dead: Path) -> None:
    run(dead)
    pieces_folder(dead).mkdir()
    eager_decode(2, 5000).write(pieces_folder(dead), "rank0", 1)
    (dead / ".pieces-done").mkdir()
    assert run(dead)[0] == 0
    assert sorted(path.suffix for path in dead.iterdir()) == [".json"] + [".parquet"] * (
        len(Bundle(dead).meta.tables)
    )


def test_what_cannot_be_salvaged_gets_one_line(
    refuses: Refuses, dead: Path, tmp_path: Path
) -> None:
    for name in ("empty", "no piece/pieces"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "file").write_text("x")
    write_json(pieces_folder(dead), RECORDING_FILE, {"pid": os.getpid()})
    for name in ("missing", "empty", "no piece", "file", dead):
        refuses((name,), files=name != "no piece")

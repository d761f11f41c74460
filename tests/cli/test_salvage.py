"""`spark-prof salvage` from the command line: what it says, and its exit codes."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from spark_prof.cli import main as cli
from spark_prof.traces.bundle import Bundle
from spark_prof.traces.pieces import RECORDING_FILE, pieces_folder, progress_name, write_json
from tests.support import Recorded, eager_decode


@pytest.fixture
def dead(tmp_path: Path) -> Path:
    """A recording of two ranks; the second lost the steps of its second piece."""
    ranks = {rank: [eager_decode(), eager_decode(2, 5000)] for rank in (0, 1)}
    pieces = Recorded(ranks).write(tmp_path / "b")
    write_json(pieces, progress_name("rank0"), {"recorded": 7})
    (pieces / "rank1.00001.steps.npy").unlink()
    return tmp_path / "b"


def salvage(monkeypatch: pytest.MonkeyPatch, *words: object) -> int:
    monkeypatch.setattr(sys, "argv", ["spark-prof", "salvage", *map(str, words)])
    return cli.main()


def test_what_was_kept_and_what_is_missing(
    dead: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert salvage(monkeypatch, dead) == 0
    shown = capsys.readouterr()
    assert shown.out.splitlines() == [
        "rank 0: 4 steps and 8 kernels in 2 pieces",
        "  missing: rank0: at least 3 recorded steps were not flushed",
        "rank 1: 2 steps and 8 kernels in 1 piece",
        "  missing: rank1, piece 1: its steps are missing; 4 kernels and 6 ranges are kept "
        "without a step",
    ]
    assert shown.err == f"spark-prof: {dead} is a bundle now; next: spark-prof report {dead}\n"
    assert not pieces_folder(dead).exists()


def test_a_whole_bundle_is_left_alone(
    dead: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    salvage(monkeypatch, dead)
    first = capsys.readouterr().out
    files = {path: (path.stat().st_mtime_ns, path.stat().st_ino) for path in dead.iterdir()}
    assert salvage(monkeypatch, dead) == 0
    shown = capsys.readouterr()
    assert shown.out == first
    assert "whole bundle (salvaged); there is nothing to salvage" in shown.err
    assert {path: (path.stat().st_mtime_ns, path.stat().st_ino) for path in dead.iterdir()} == files


def test_a_rank_of_which_nothing_came(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    parallel = {"tensor_parallel_size": 2, "pipeline_parallel_size": 1}
    Recorded({0: [eager_decode()]}, facts={"parallel": parallel}).write(tmp_path / "b")
    assert salvage(monkeypatch, tmp_path / "b") == 0
    assert capsys.readouterr().out.splitlines()[-1] == "missing: 1 of 2 ranks left nothing here"


def test_pieces_that_came_after_the_bundle_are_left(
    dead: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    salvage(monkeypatch, dead)
    pieces_folder(dead).mkdir()
    eager_decode(2, 5000).write(pieces_folder(dead), "rank0", 1)
    eager_decode(4, 9000).write(pieces_folder(dead), "rank0", 2)
    assert salvage(monkeypatch, dead) == 0
    assert "1 pieces came after the bundle was made" in capsys.readouterr().out
    assert (pieces_folder(dead) / "rank0.00002.steps.npy").exists()


def test_what_an_unfinished_removal_left_goes(
    dead: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    salvage(monkeypatch, dead)
    pieces_folder(dead).mkdir()
    eager_decode(2, 5000).write(pieces_folder(dead), "rank0", 1)
    (dead / ".pieces-done").mkdir()
    assert salvage(monkeypatch, dead) == 0
    assert sorted(path.suffix for path in dead.iterdir()) == [".json"] + [".parquet"] * (
        len(Bundle(dead).meta.tables)
    )


@pytest.mark.parametrize("what", ["missing", "empty", "file", "recorded", "no piece"])
def test_what_cannot_be_salvaged_gets_one_line(
    what: str,
    dead: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = tmp_path / what
    if what in ("empty", "no piece"):
        folder.mkdir()
    if what == "no piece":
        pieces_folder(folder).mkdir()
    if what == "file":
        folder.write_text("x")
    if what == "recorded":
        folder = dead
        write_json(pieces_folder(dead), RECORDING_FILE, {"pid": os.getpid()})
    assert salvage(monkeypatch, folder) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("spark-prof: ")
    assert shown.err.count("\n") == 1

"""Snapshots of recordings that go on: whole pieces only, and the recording is left alone."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_prof.errors import CommandError
from spark_prof.traces.assemble import assemble
from spark_prof.traces.chunks import array_name, pieces_folder, progress_name, write_json
from spark_prof.traces.resolve import RecordingInProgress, resolve, source_state
from spark_prof.traces.salvage_chunks import snapshot
from tests.flushed import flushed_in, lacking
from tests.support import Recorded, eager_decode


@pytest.fixture
def recorder() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    yield process
    process.kill()
    process.wait()


@pytest.fixture
def folder(tmp_path: Path, recorder: subprocess.Popen[bytes]) -> Path:
    """A recording with two pieces that goes on."""
    pieces = Recorded({0: [eager_decode(2 * n, 2000 * n) for n in range(2)]}).write(
        tmp_path / "run"
    )
    write_json(pieces, progress_name("rank0"), {"pid": recorder.pid, "recorded": 4})
    return tmp_path / "run"


def taken(folder: Path, into: Path, **limits: int) -> list[int]:
    """The steps of a snapshot."""
    into.mkdir()
    return snapshot(folder, into, **limits).frame("steps", 0)["step"].tolist()


def content(folder: Path) -> dict[str, tuple[bytes, int]]:
    return {
        str(path.relative_to(folder)): (path.read_bytes(), path.stat().st_mtime_ns)
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_a_snapshot_has_what_was_flushed_and_changes_nothing(folder: Path, tmp_path: Path) -> None:
    before = content(folder)
    assert isinstance(resolve(str(folder)), RecordingInProgress)
    (tmp_path / "snapshot").mkdir()
    bundle = snapshot(folder, tmp_path / "snapshot")
    assert lacking(flushed_in(pieces_folder(folder)), bundle) == []
    assert bundle.meta.state == "recording"
    assert "still being recorded" in bundle.meta.lost[0]
    assert content(folder) == before


def test_snapshots_grow_with_the_pieces(folder: Path, tmp_path: Path) -> None:
    states = [source_state(str(folder))]
    assert taken(folder, tmp_path / "a") == [0, 1, 2, 3]
    eager_decode(4, 4000).write(pieces_folder(folder), "rank0", 2)
    states.append(source_state(str(folder)))
    assert taken(folder, tmp_path / "b") == [0, 1, 2, 3, 4, 5]
    assert len(set(states)) == 2


def test_a_piece_that_is_not_whole_is_left_out(folder: Path, tmp_path: Path) -> None:
    state = source_state(str(folder))
    eager_decode(4, 4000).write(pieces_folder(folder), "rank0", 2)
    (pieces_folder(folder) / array_name("rank0", "steps", 2)).unlink()
    assert source_state(str(folder)) == state
    assert taken(folder, tmp_path / "a") == [0, 1, 2, 3]


@pytest.mark.parametrize("limits", [{"most_pieces": 1}, {"most_bytes": 1}])
def test_of_a_long_recording_the_newest_pieces_are_taken(
    folder: Path, tmp_path: Path, limits: dict[str, int]
) -> None:
    assert taken(folder, tmp_path / "a", **limits) == [2, 3]
    (tmp_path / "b").mkdir()
    lost = snapshot(folder, tmp_path / "b", **limits).meta.lost
    assert "1 of 2 flushed pieces are older and are not looked at" in lost


def test_a_damaged_piece_stays_where_it_is(folder: Path, tmp_path: Path) -> None:
    damaged = pieces_folder(folder) / array_name("rank0", "steps", 1)
    damaged.write_bytes(b"damage")
    assert taken(folder, tmp_path / "a") == [0, 1]
    assert damaged.read_bytes() == b"damage"


def test_before_the_first_piece_there_is_nothing_to_look_at(folder: Path, tmp_path: Path) -> None:
    for path in pieces_folder(folder).glob("rank0.*.steps.npy"):
        path.unlink()
    with pytest.raises(CommandError, match="has no whole piece yet"):
        snapshot(folder, tmp_path)


def test_a_recording_that_ended_is_none(folder: Path, recorder: subprocess.Popen[bytes]) -> None:
    state = source_state(str(folder))
    recorder.kill()
    os.waitid(os.P_PID, recorder.pid, os.WEXITED | os.WNOWAIT)
    assert not isinstance(resolve(str(folder)), RecordingInProgress)
    assert source_state(str(folder)) != state
    recorder.wait()
    assemble(folder, state="salvaged")
    assert not isinstance(resolve(str(folder)), RecordingInProgress)

"""What is left of a recording that was killed, cut short or hit by a power cut."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from spark_prof.errors import CommandError
from spark_prof.traces import assemble as module
from spark_prof.traces.assemble import assemble, open_bundle, salvage, snapshot
from spark_prof.traces.bundle import META_FILE, Bundle
from spark_prof.traces.chunks import (
    activity_name,
    array_name,
    names_name,
    pieces_folder,
    progress_name,
    write_json,
)
from spark_prof.traces.resolve import RecordingInProgress, resolve, source_state
from tests.flushed import flushed_in, lacking
from tests.rows import each_row
from tests.support import ORIGIN, Recorded, eager_decode
from tests.traces.cupti_buffers import block, records

ROOT = Path(__file__).parents[2]


@pytest.fixture
def dead(tmp_path: Path) -> Path:
    Recorded({0: [eager_decode(), eager_decode(2, 5000)]}).write(tmp_path / "b")
    return tmp_path / "b"


@each_row("pieces", [1, 7])
def test_a_killed_recorder_loses_nothing_that_it_had_flushed(tmp_path: Path, pieces: int) -> None:
    folder = tmp_path / "b"
    recorder = subprocess.Popen(
        [sys.executable, "-m", "tests.recorder", str(folder), "--piece", "2"],
        cwd=ROOT, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        end = time.monotonic() + 60
        while len(list(pieces_folder(folder).glob("*.steps.npy"))) < pieces:
            assert time.monotonic() < end
            assert recorder.poll() is None
        with pytest.raises(CommandError, match="still being recorded"):
            salvage(folder)
    finally:
        recorder.send_signal(signal.SIGKILL)
    # Nobody has asked for its exit code yet: a dead process that is still listed is dead.
    os.waitid(os.P_PID, recorder.pid, os.WEXITED | os.WNOWAIT)
    found = flushed_in(pieces_folder(folder))
    kept = salvage(folder)
    recorder.wait()
    assert kept.newly_assembled
    assert lacking(found, kept.bundle) == []
    assert kept.ranks[0].steps == found.count()[0] >= 2 * pieces
    assert not salvage(folder).newly_assembled


class Killed(BaseException):
    """Stands for a process that ends right here."""


@pytest.mark.parametrize("at", ["_meta", "_put_aside", "remove_pieces", "add_log"])
def test_an_assembly_that_was_cut_short_is_done_again(
    dead: Path, at: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = flushed_in(pieces_folder(dead))
    owner = module.PieceTables if at == "add_log" else module
    with monkeypatch.context() as patched:
        patched.setattr(owner, at, lambda *_: (_ for _ in ()).throw(Killed))
        # A killed process does not tidy up.
        patched.setattr("spark_prof.traces.bundle.remove_tables", lambda _: None)
        with pytest.raises(Killed):
            open_bundle(dead)
    assert pieces_folder(dead).is_dir()
    result = salvage(dead)
    assert result.newly_assembled == (at in ("_meta", "add_log"))
    assert lacking(found, result.bundle) == []
    assert not pieces_folder(dead).exists()


@pytest.mark.parametrize("torn", [META_FILE, "steps-rank0.parquet", "kernels-rank0.parquet"])
@pytest.mark.parametrize("left", [b"", b"PAR1", None], ids=repr)
def test_a_power_cut_while_the_bundle_was_made(
    dead: Path, torn: str, left: bytes | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = flushed_in(pieces_folder(dead))
    with monkeypatch.context() as patched:
        patched.setattr(module, "remove_pieces", lambda _: None)
        open_bundle(dead)
    (dead / torn).unlink()
    if left is not None:
        (dead / torn).write_bytes(left)
    assert lacking(found, salvage(dead).bundle) == []
    assert Bundle(dead).meta.state == "salvaged"


def test_a_bundle_of_another_spark_prof_is_not_made_again(dead: Path) -> None:
    (dead / META_FILE).write_text('{"schema": 999}')
    with pytest.raises(CommandError, match="update spark-prof"):
        salvage(dead)
    assert flushed_in(pieces_folder(dead)).count()[0] == 4


def test_the_tables_are_on_the_disk_before_the_pieces_go(
    dead: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: set[str] = set()
    sync = os.fsync

    def record(number: int) -> None:
        path = Path(os.readlink(f"/proc/self/fd/{number}"))
        synced.add(path.name.split(".json")[0].lstrip(".") if ".json" in path.name else path.name)
        assert pieces_folder(dead).is_dir()
        sync(number)

    monkeypatch.setattr(os, "fsync", record)
    bundle = salvage(dead).bundle
    assert synced == {*bundle.meta.tables, "meta", dead.name}


def test_two_salvages_at_once(dead: Path) -> None:
    other = os.open(pieces_folder(dead), os.O_RDONLY)
    fcntl.flock(other, fcntl.LOCK_EX)
    with pytest.raises(CommandError, match="another spark-prof is making the bundle"):
        salvage(dead)
    os.close(other)  # as the kernel does when that process is killed
    assert salvage(dead).newly_assembled


def test_a_worker_on_another_host_is_not_looked_for_here(tmp_path: Path) -> None:
    pieces = Recorded({0: [eager_decode()]}, facts={"host": "elsewhere"}).write(tmp_path / "b")
    write_json(pieces, progress_name("rank0"), {"pid": os.getpid(), "finished": False})
    assert salvage(tmp_path / "b").newly_assembled


def cupti_piece(pieces: Path, piece: int, *, kernels: int, names: bool, cut: int = 0) -> None:
    """Raw buffers of two blocks, the second of which may lack its last bytes."""
    starts = 100 + np.arange(kernels) * 100 + 10_000 * piece
    content = b"".join(block(records(10, n, name=7, start=s, end=s + 50)) for n, s in
                       ((kernels, starts), (kernels, starts + 5000)))  # fmt: skip
    (pieces / activity_name("rank0", piece)).write_bytes(content[: len(content) - cut])
    value = {"names": {"7": "gemm"}, "clock_offset_ns": ORIGIN, "functions": {}}
    if names:
        write_json(pieces, names_name("rank0", piece), value)


@pytest.mark.parametrize(("cut", "kept"), [(0, 6), (1, 3), (1350, 0)])
def test_raw_buffers_of_a_piece_that_was_cut_short(dead: Path, cut: int, kept: int) -> None:
    pieces = pieces_folder(dead)
    for path in pieces.glob("*.kineto.json"):
        path.unlink()
    for piece in (0, 1):
        cupti_piece(pieces, piece, kernels=3, names=True)
    cupti_piece(pieces, 2, kernels=3, names=False, cut=cut)
    bundle = salvage(dead).bundle
    kernels = bundle.frame("kernels", 0)
    assert len(kernels) == 12 + kept
    assert set(kernels["name"]) == {"gemm"}
    assert set(kernels["step"][12:]) <= {-1}
    told = [line for line in bundle.meta.lost if line.startswith("rank0, piece 2: ")]
    assert any("names were not flushed: those of piece 1 are used" in line for line in told)
    assert any(f"{kept} kernels and 0 ranges are kept without a step" in line for line in told)
    assert any("cut off" in line for line in told) == (cut > 0)


def test_raw_buffers_alone_are_evidence(tmp_path: Path) -> None:
    pieces = Recorded({0: []}).write(tmp_path / "b")
    cupti_piece(pieces, 0, kernels=4, names=True)
    result = salvage(tmp_path / "b")
    assert (result.ranks[0].steps, result.ranks[0].kernels) == (0, 8)
    assert "rank0: no step was flushed" in result.ranks[0].missing


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


def test_a_piece_that_is_not_whole_is_left_out(folder: Path, tmp_path: Path) -> None:
    state = source_state(str(folder))
    eager_decode(4, 4000).write(pieces_folder(folder), "rank0", 2)
    (pieces_folder(folder) / array_name("rank0", "steps", 2)).unlink()
    assert source_state(str(folder)) == state
    (tmp_path / "a").mkdir()
    assert snapshot(folder, tmp_path / "a").frame("steps", 0)["step"].tolist() == [0, 1, 2, 3]


@each_row("limit", ["MOST_PIECES", "MOST_BYTES"])
def test_of_a_long_recording_the_newest_pieces_are_taken(
    folder: Path, tmp_path: Path, limit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, limit, 1)
    (tmp_path / "a").mkdir()
    bundle = snapshot(folder, tmp_path / "a")
    assert bundle.frame("steps", 0)["step"].tolist() == [2, 3]
    assert "1 of 2 flushed pieces are older and are not looked at" in bundle.meta.lost


def test_a_recording_that_ended_is_none(folder: Path, recorder: subprocess.Popen[bytes]) -> None:
    state = source_state(str(folder))
    recorder.kill()
    os.waitid(os.P_PID, recorder.pid, os.WEXITED | os.WNOWAIT)
    assert not isinstance(resolve(str(folder)), RecordingInProgress)
    assert source_state(str(folder)) != state
    recorder.wait()
    assemble(folder, state="salvaged")
    assert not isinstance(resolve(str(folder)), RecordingInProgress)

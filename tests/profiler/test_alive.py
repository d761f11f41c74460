"""How a recorded process sees that its recorder lives, asks for the end, or is gone."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from spark_prof.profiler import alive
from spark_prof.profiler.alive import Pulse, RecorderWatch, ask_to_end
from spark_prof.profiler.launcher import prepare_bundle
from spark_prof.profiler.settings import Settings
from spark_prof.traces import chunks
from spark_prof.traces.chunks import RECORDING_FILE, pieces_folder
from spark_prof.traces.claim import Claim


class Clock:
    """Stands for the time of the recorded process; no beat comes by itself."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        monkeypatch.setattr(alive.time, "monotonic", lambda: self.now)
        monkeypatch.setattr(alive, "_BEAT_SECONDS", 3600.0)

    def look(self, watch: RecorderWatch, seconds: float) -> str:
        """What it says at last, when it is looked at twice a second."""
        said = ""
        for _ in range(int(seconds / 0.5)):
            self.now += 0.5
            said = said or watch.end_reason()
        return said


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "b"


@contextmanager
def recording(folder: Path) -> Iterator[Claim]:
    claim = prepare_bundle(folder, ["vllm"], Settings(str(folder)))
    try:
        yield claim
    finally:
        claim.release()


def beat(folder: Path, beats: int) -> None:
    descriptor = os.open(pieces_folder(folder) / alive.PULSE_FILE, os.O_WRONLY)
    os.pwrite(descriptor, beats.to_bytes(8, "little"), 0)
    os.close(descriptor)


def test_a_recorder_that_ends_is_seen_by_its_lock(folder: Path, clock: Clock) -> None:
    with recording(folder):
        watch = RecorderWatch(pieces_folder(folder))
        assert clock.look(watch, 10) == ""
    assert watch.end_reason() == ""  # one look may fall into a moment
    assert watch.end_reason() == "its recorder ended without a word"


def test_one_that_ended_before_it_was_looked_at(folder: Path, clock: Clock) -> None:
    with recording(folder):
        pass
    assert "ended" in clock.look(RecorderWatch(pieces_folder(folder)), 2)


def test_where_the_lock_cannot_be_seen_the_pulse_is_heard(
    folder: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on another host: another boot, and a file system that knows nothing of the lock."""
    with recording(folder):
        pass
    monkeypatch.setattr(alive, "boot_id", lambda: "another")
    watch = RecorderWatch(pieces_folder(folder))
    for beats in range(2, 60):
        beat(folder, beats)
        assert clock.look(watch, 2) == ""
    assert "no sign of life" in clock.look(watch, alive.SILENT_SECONDS + 1)


def test_one_that_is_stopped_for_long_is_gone(folder: Path, clock: Clock) -> None:
    with recording(folder):
        watch = RecorderWatch(pieces_folder(folder))
        assert clock.look(watch, alive.SILENT_SECONDS) == ""
        assert "no sign of life" in clock.look(watch, 2)


def test_a_process_that_was_stopped_itself_does_not_blame_its_recorder(
    folder: Path, clock: Clock
) -> None:
    with recording(folder):
        watch = RecorderWatch(pieces_folder(folder))
        watch.end_reason()
        clock.now += 3600  # as of a suspended container
        assert watch.end_reason() == ""
        beat(folder, 2)
        assert clock.look(watch, alive.SILENT_SECONDS - 1) == ""


@pytest.mark.parametrize("recorder", ["elsewhere", "older", "without pulse"])
def test_one_of_whom_nothing_can_be_seen_is_not_taken_as_gone(
    folder: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch, recorder: str
) -> None:
    with recording(folder):
        pass
    pieces = pieces_folder(folder)
    (pieces / alive.PULSE_FILE).unlink()
    if recorder == "elsewhere":
        (pieces / RECORDING_FILE).unlink()
    elif recorder == "older":
        (pieces / RECORDING_FILE).write_text('{"pid": 1, "settings": {}}')
    else:
        monkeypatch.setattr(alive, "boot_id", lambda: "another")
    assert clock.look(RecorderWatch(pieces), 600) == ""


@pytest.mark.parametrize("gone", ["bundle", "pieces"])
def test_a_folder_that_is_gone(folder: Path, clock: Clock, gone: str) -> None:
    with recording(folder):
        watch = RecorderWatch(pieces_folder(folder))
        (folder if gone == "bundle" else pieces_folder(folder)).rename(folder.with_name("moved"))
        assert clock.look(watch, 2) == "its folder was removed or moved"


def test_it_can_be_asked_to_end_where_no_file_can_be_made(folder: Path) -> None:
    with recording(folder):
        watch = RecorderWatch(pieces_folder(folder))
        assert not watch.asks_for_end()
        before = sorted(pieces_folder(folder).iterdir())
        ask_to_end(pieces_folder(folder))
        assert watch.asks_for_end()
        assert sorted(pieces_folder(folder).iterdir()) == before
    ask_to_end(folder / "nowhere")


def test_the_pulse_beats_until_its_end(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.mkdir()
    monkeypatch.setattr(alive, "_BEAT_SECONDS", 0.01)
    pulse = Pulse(folder)
    path = folder / alive.PULSE_FILE
    while int.from_bytes(path.read_bytes()[:8], "little") < 3:
        pass
    pulse.end()
    pulse.end()
    kept = path.read_bytes()
    assert len(kept) == 16
    assert path.read_bytes() == kept


def test_a_recorder_says_under_which_kernel_its_lock_is_to_be_seen(folder: Path) -> None:
    import json

    with recording(folder):
        value = json.loads((pieces_folder(folder) / RECORDING_FILE).read_text())
    assert value["locked_in"] == chunks.boot_id() != ""

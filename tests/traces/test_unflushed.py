"""Whatever ends a recorded process: steps that are kept and steps told as lost are all that ran."""

from __future__ import annotations

import faulthandler
import mmap
import os
import random
import re
import shutil
import signal
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from spark_prof import files
from spark_prof.errors import CommandError
from spark_prof.profiler.process import Process
from spark_prof.profiler.settings import Settings
from spark_prof.profiler.worker import WorkerRecording
from spark_prof.traces.assemble import assemble, salvage
from spark_prof.traces.bundle import Bundle, Meta
from spark_prof.traces.chunk_files import other_recordings
from spark_prof.traces.chunks import (
    LATER_ENGINE,
    RECORDING_FILE,
    array_name,
    counts_name,
    facts_name,
    pieces_folder,
    progress_name,
    write_json,
)
from tests.profiler import fakes

TOLD = re.compile(r"rank0: (at least )?([0-9]+) recorded steps (?:were not flushed|are missing)")
CASES = int(os.environ.get("SPARK_PROF_KILLS", "40"))
WAYS = ("in a step", "after a step", "before a rename", "after a rename")


def end(how: str) -> None:
    """Ends this process as no handler can hear."""
    if how == "exit":
        os._exit(3)
    os.kill(os.getpid(), signal.SIGKILL if how == "kill" else signal.SIGSEGV)


def record_until(folder: Path, piece: int, way: str, at: int, how: str, ran: Any) -> None:
    """The forked process: records steps and ends at the given one."""
    faulthandler.disable()
    settings = Settings(
        str(folder), steps=0, backend="none", steps_per_piece=piece, run="0123456789abcdef"
    )
    worker = fakes.Worker()
    process = Process(settings, "rank0", 0)
    recording = WorkerRecording(worker, settings, process)
    recording.install()
    renames = 0
    replace = os.replace

    def counted(old: Any, new: Any) -> None:
        nonlocal renames
        renames += str(new).endswith(".npy")
        if way == "before a rename" and renames == at:
            end(how)
        replace(old, new)
        if way == "after a rename" and renames == at:
            end(how)

    files.os.replace = counted  # type: ignore[attr-defined]
    model = worker.model_runner.model
    forward = model.forward

    def last(value: Any) -> Any:
        if way == "in a step" and ran[0] == at:
            end(how)
        return forward(value)

    worker.compile_or_warm_up_model()
    model.forward = last
    for position in range(250):
        fakes.run(worker, fakes.decode(position))
        ran[0] += 1
        if way == "after a step" and ran[0] == at:
            process.progress(recording.window)
            end(how)
    os._exit(4)


def die(folder: Path, *arguments: Any) -> int:
    """Forks a recording that ends that way; returns how many steps it had done."""
    ran = mmap.mmap(-1, 8)  # shared with the fork, and no matter of the code under test
    child = os.fork()
    if child == 0:
        try:
            record_until(folder, *arguments, memoryview(ran))
        finally:
            os._exit(5)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status in (3, -signal.SIGKILL, -signal.SIGSEGV), status
    return ran[0]


def told(lines: Any) -> int:
    found = [match for line in lines if (match := TOLD.match(line))]
    assert len(found) <= 1
    assert not any(match[1] for match in found), "the count is exact here"
    return int(found[0][2]) if found else 0


def bundle_of(folder: Path, *, salvaged: bool) -> tuple[Bundle | None, str]:
    """The bundle, or why there is none."""
    try:
        if salvaged:
            return salvage(folder).bundle, ""
        return assemble(folder, state="complete"), ""
    except CommandError as error:
        return None, str(error)


@pytest.mark.slow
def test_kept_and_told_are_all_that_ran(tmp_path: Path) -> None:
    chance = random.Random(7)
    flushed = unflushed = 0
    for number in range(CASES):
        way, how = chance.choice(WAYS), chance.choice(("kill", "exit", "segv"))
        piece, at = chance.randint(1, 9), chance.randint(1, 30)
        folder = tmp_path / str(number)
        ran = die(folder, piece, way, at, how)
        case = f"{number}: {how} {way} {at}, {piece} steps a piece, {ran} ran"
        bundle, why = bundle_of(folder, salvaged=bool(number % 2))
        if bundle is None:
            assert ran <= piece, case
            assert told(why.split(": ", 1)[1:]) == ran, f"{case}: {why}"
            unflushed += ran
            continue
        kept, lost = len(bundle.frame("steps", 0)), told(bundle.meta.lost)
        assert kept + lost == ran, case
        running = any("1 more step was running" in line for line in bundle.meta.lost)
        assert running == (way == "in a step"), case
        whole = number % 2 == 0 and not lost and not running
        assert bundle.meta.state == (
            "complete" if whole else ("interrupted", "salvaged")[number % 2]
        )
        flushed, unflushed = flushed + kept, unflushed + lost
    assert flushed > 3 * CASES
    assert unflushed > CASES


def recorded(folder: Path, steps: int = 20, piece: int = 4, run: str = "0123456789abcdef") -> Path:
    """A whole recording that ended well; returns its pieces."""
    settings = Settings(str(folder), steps=0, backend="none", steps_per_piece=piece, run=run)
    worker = fakes.Worker()
    recording = WorkerRecording(worker, settings, Process(settings, "rank0", 0))
    recording.install()
    for position in range(steps):
        fakes.run(worker, fakes.decode(position))
    worker.shutdown()
    pieces = pieces_folder(folder)
    write_json(pieces, RECORDING_FILE, {"command": ["vllm"], "settings": {"run": run}})
    return pieces


@pytest.fixture(autouse=True)
def _without_vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "vllm", SimpleNamespace(__version__="0.32.0"))


def made(folder: Path) -> tuple[int, Meta]:
    bundle = assemble(folder, state="complete")
    return len(bundle.frame("steps", 0)), bundle.meta


@pytest.mark.parametrize("gone", [[1], [0], [4], [1, 3], [0, 1, 2]], ids=str)
@pytest.mark.parametrize("counted", [True, False])
def test_pieces_that_are_gone(tmp_path: Path, gone: list[int], counted: bool) -> None:
    pieces = recorded(tmp_path / "b")
    for number in gone:
        for path in pieces.glob(f"rank0.{number:05d}.*"):
            path.unlink()
    if not counted:
        (pieces / counts_name("rank0")).unlink()
    kept, meta = made(tmp_path / "b")
    assert kept == 20 - 4 * len(gone)
    assert meta.state == "interrupted"
    assert [line for line in meta.lost if f"{4 * len(gone)} recorded steps" in line] != []


@pytest.mark.parametrize("kind", ["steps", "events"])
@pytest.mark.parametrize("share", [0, 0.3, 0.9, 0.999])
def test_a_piece_that_is_cut_in_the_middle(tmp_path: Path, kind: str, share: float) -> None:
    pieces = recorded(tmp_path / "b")
    path = pieces / array_name("rank0", kind, 2)
    os.truncate(path, int(path.stat().st_size * share))
    kept, meta = made(tmp_path / "b")
    assert kept == (16 if kind == "steps" else 20)
    assert any(f"{path.name} is missing or damaged" in line for line in meta.lost)
    assert told(meta.lost) == 20 - kept


@pytest.mark.parametrize(
    "content", [b"", b"SPCOUNT1", b"\0" * 120, b"\xff" * 120, b"SPCOUNT1" + b"\xff" * 112]
)
def test_damaged_counts_fall_back_to_what_was_reported(tmp_path: Path, content: bytes) -> None:
    pieces = recorded(tmp_path / "b")
    (pieces / counts_name("rank0")).write_bytes(content)
    write_json(pieces, progress_name("rank0"), {"recorded": 23, "finished": False})
    lost = salvage(tmp_path / "b").bundle.meta.lost
    assert any("rank0: at least 3 recorded steps were not flushed" in line for line in lost)


@pytest.mark.parametrize("kept", [{facts_name("rank1")}, {counts_name("rank1")}], ids=str)
@pytest.mark.parametrize("recorder_here", [True, False])
def test_ranks_of_another_recording_are_told_and_not_mixed_in(
    tmp_path: Path, kept: set[str], recorder_here: bool
) -> None:
    pieces = recorded(tmp_path / "a", 20)
    shutil.copy(pieces / facts_name("rank0"), pieces / facts_name("rank2"))
    other = recorded(tmp_path / "b", 40, run="fedcba9876543210")
    for path in other.glob("*rank0.*"):
        name = path.name.replace("rank0", "rank1")
        if name in kept or name not in (facts_name("rank1"), counts_name("rank1")):
            content = path.read_bytes().replace(b'"process": "rank0"', b'"process": "rank1"')
            (pieces / name).write_bytes(content)
    if not recorder_here:
        (pieces / RECORDING_FILE).unlink()
    planted = other_recordings(pieces)
    assert len(planted) > 20
    bundle = salvage(tmp_path / "a").bundle
    assert len(bundle.frame("steps", 0)) == 20
    assert 1 not in bundle.ranks
    assert any("files of another recording" in line for line in bundle.meta.lost)
    aside = tmp_path / "a" / "unreadable"
    assert {path.name for path in planted} == {path.name for path in aside.iterdir()}


def test_a_second_process_of_a_name_does_not_write_over_the_first(tmp_path: Path) -> None:
    recorded(tmp_path / "b", 12)
    recorded(tmp_path / "b", 8)
    kept, meta = made(tmp_path / "b")
    assert kept == 12
    assert LATER_ENGINE in meta.lost


def test_a_process_leaves_the_folder_of_another_recording_alone(tmp_path: Path) -> None:
    settings = Settings(str(tmp_path / "b"), steps=0, backend="none", steps_per_piece=2, run="a")
    worker = fakes.Worker()
    recording = WorkerRecording(worker, settings, Process(settings, "rank0", 0))
    recording.install()
    pieces = pieces_folder(tmp_path / "b")
    for position in range(4):
        fakes.run(worker, fakes.decode(position))
    (tmp_path / "b").rename(tmp_path / "moved")
    pieces.mkdir(parents=True)
    write_json(pieces, RECORDING_FILE, {"settings": {"run": "b"}})
    answers = [fakes.run(worker, fakes.decode(position)) for position in range(4, 9)]
    assert answers == [fakes.run(fakes.Worker(), fakes.decode(0))] * 5
    worker.shutdown()
    assert [path.name for path in pieces.iterdir()] == [RECORDING_FILE]
    assert (pieces_folder(tmp_path / "moved") / facts_name("rank0")).exists()


def test_what_ended_a_recording_that_nobody_ended_is_told(tmp_path: Path) -> None:
    settings = Settings(str(tmp_path / "b"), steps=0, backend="none", steps_per_piece=2)
    worker = fakes.Worker()
    recording = WorkerRecording(worker, settings, Process(settings, "rank0", 0))
    recording.install()
    for position in range(5):
        fakes.run(worker, fakes.decode(position))
    recording.request_stop("its recorder ended without a word")
    recording.finish()
    result = salvage(tmp_path / "b")
    told = "rank0: its recording ended after 5 steps: its recorder ended without a word"
    assert told in result.ranks[0].missing
    assert len(result.bundle.frame("steps", 0)) == 5

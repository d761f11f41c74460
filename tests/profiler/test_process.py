"""What a recorded process says about itself."""

from __future__ import annotations

import errno
import gc
import json
import mmap
import os
import socket
import time
from pathlib import Path

import pytest

from spark_prof.profiler.process import Process
from spark_prof.profiler.settings import Settings
from spark_prof.traces import chunks
from spark_prof.traces.chunk_files import log_lines
from spark_prof.traces.chunks import (
    LATER_ENGINE_FILE,
    META_FILE,
    facts_name,
    pieces_folder,
    read_counts,
)


def test_who_it_is_and_which_clock_it_reads(tmp_path: Path) -> None:
    settings = Settings(str(tmp_path), run="5f")
    for name, rank in (("rank3", 3), ("engine0", 0)):
        Process(settings, name, rank).write_facts({"vllm": "0.32.0"})
    read = [
        json.loads((pieces_folder(tmp_path) / facts_name(name)).read_text())
        for name in ("rank3", "engine0")
    ]
    assert [(f["process"], f["rank"], f["run"]) for f in read] == [
        ("rank3", 3, "5f"), ("engine0", 0, "5f"),
    ]  # fmt: skip
    assert {(f["pid"], f["host"]) for f in read} == {(os.getpid(), socket.gethostname())}
    assert read[0]["boot"] == read[1]["boot"] != ""
    assert read[0]["vllm"] == "0.32.0"


def process(folder: Path, run: str = "a") -> Process:
    return Process(Settings(str(folder), run=run), "engine0", 0)


def test_a_name_is_one_process_s_for_as_long_as_it_counts(tmp_path: Path) -> None:
    """Replicas that begin at the same time: none has counted anything yet."""
    first, second = process(tmp_path), process(tmp_path)
    assert first.begin()
    assert not second.begin()
    assert (tmp_path / LATER_ENGINE_FILE).exists()
    first.counter.end(3)
    second.counter.end(7)
    assert read_counts(pieces_folder(tmp_path))["engine0"].recorded == 3


def test_at_once_in_many_processes_one_begins(tmp_path: Path) -> None:
    begun = mmap.mmap(-1, 8)
    ready = os.pipe()
    children = []
    for number in range(8):
        child = os.fork()
        if child == 0:
            try:
                mine = process(tmp_path)
                os.close(ready[1])
                os.read(ready[0], 1)  # until all are there
                begun[number] = 1 + mine.begin()
                time.sleep(1)
            finally:
                os._exit(0)
        children.append(child)
    os.close(ready[1])
    for child in children:
        os.waitpid(child, 0)
    assert sorted(begun[:8]) == [1] * 7 + [2]


def test_one_that_ended_without_a_step_makes_room(tmp_path: Path) -> None:
    """An engine that failed while it started, or was made and never asked."""
    first = process(tmp_path)
    assert first.begin()
    del first
    gc.collect()
    assert process(tmp_path).begin()


def test_steps_of_a_process_that_ended_are_not_written_over(tmp_path: Path) -> None:
    first = process(tmp_path)
    assert first.begin()
    first.counter.end(2)
    del first
    gc.collect()
    assert not process(tmp_path).begin()
    assert (tmp_path / LATER_ENGINE_FILE).exists()


def test_an_earlier_recording_in_the_folder_is_no_engine_of_this_one(tmp_path: Path) -> None:
    first = process(tmp_path, "a")
    assert first.begin()
    first.counter.end(2)
    second = process(tmp_path, "b")
    assert not second.begin()
    [line] = log_lines(pieces_folder(tmp_path))
    assert "steps of an earlier recording" in line["message"]
    assert not (tmp_path / LATER_ENGINE_FILE).exists()


def test_where_files_cannot_be_locked_the_second_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def without(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(chunks.fcntl, "flock", without)
    first = process(tmp_path)
    assert first.begin()
    assert not process(tmp_path).begin()


def test_after_its_bundle_a_recording_takes_no_engine(tmp_path: Path) -> None:
    (tmp_path / META_FILE).write_text("{}")
    late = process(tmp_path)
    assert not late.begin()
    assert not pieces_folder(tmp_path).exists()
    assert (tmp_path / LATER_ENGINE_FILE).exists()


def test_one_that_has_ended_leaves_its_file_system_alone(tmp_path: Path) -> None:
    first = process(tmp_path)
    assert first.begin()
    first.counter.end(2)
    path = str(pieces_folder(tmp_path) / "counts.engine0.bin")
    assert path in Path("/proc/self/maps").read_text()
    first.counter.finish()
    assert path not in Path("/proc/self/maps").read_text()
    assert path not in [os.path.realpath(f"/proc/self/fd/{n}") for n in os.listdir("/proc/self/fd")]
    first.counter.end(3)  # of an iteration that was under way
    counts = read_counts(pieces_folder(tmp_path))["engine0"]
    assert (counts.recorded, counts.ended) == (2, True)
    assert not process(tmp_path).begin()

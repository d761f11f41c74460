"""Of a long recording some steps are shown before all are read."""

from __future__ import annotations

import os
import shutil
import sys
import threading
from concurrent.futures import Future
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from spark_prof.analyzers.summary import summarize
from spark_prof.datasets import prepared_process
from spark_prof.datasets.prepared import Prepared, prepare
from spark_prof.datasets.prepared_content import decode_opening
from spark_prof.datasets.prepared_name import prepared_name
from spark_prof.datasets.prepared_process import FIRST_LOOK_FILE, OPENING_FILE
from spark_prof.errors import CommandError
from spark_prof.traces.bundle import Bundle, table_file
from spark_prof.traces.prepared_files import FilesWriter, read_small
from spark_prof.traces.prepared_folders import cache_folder, lock
from spark_prof.traces.some_steps import SomeSteps

DATA = Path(__file__).parents[1] / "data"
_FEW = 4_000


@pytest.fixture(autouse=True)
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A recording of 14,800 kernels is long, in this test; what would have been said by nice."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(prepared_process, "_LONG", 10_000)
    monkeypatch.setattr(prepared_process, "_LOOKED_AT", _FEW)
    nice: list[int] = []
    monkeypatch.setattr(os, "nice", nice.append)
    return nice


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    shutil.copytree(DATA / "h100-gpt-oss-20b-mxfp4-eager", folder)
    path = folder / table_file("kernels", 0)
    pq.write_table(pq.read_table(path), path, row_group_size=2_000)
    return folder


def prepared(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What the process writes that prepares it, run here."""
    # What lies beside a prepared folder is taken for others of its kind.
    folder = tmp_path / "prepared" / "folder"
    folder.mkdir(parents=True)
    monkeypatch.setattr(sys, "argv", ["prepared_process", str(source), "-", str(folder)])
    assert prepared_process.main() == 0
    return folder


def test_it_is_the_report_of_those_steps(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small: list[int]
) -> None:
    folder = prepared(source, tmp_path, monkeypatch)
    first, whole = (
        decode_opening(read_small(folder / name) or b"") for name in (FIRST_LOOK_FILE, OPENING_FILE)
    )
    some = SomeSteps(Bundle(source), 0, _FEW)
    assert first.share == some.share
    assert first.report == summarize(some, 0)
    assert 0 < first.report.steps.count < whole.report.steps.count
    assert whole.share is None
    assert len(small) == 1, "the rest is less urgent from then on"


def test_a_short_recording_has_none(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small: list[int]
) -> None:
    monkeypatch.setattr(prepared_process, "_LONG", 20_000)
    folder = prepared(source, tmp_path, monkeypatch)
    assert not (folder / FIRST_LOOK_FILE).exists()
    assert not small


def test_one_that_fails_costs_nothing(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise ValueError("a fault of ours")

    monkeypatch.setattr("spark_prof.traces.some_steps.SomeSteps.__init__", fail)
    folder = prepared(source, tmp_path, monkeypatch)
    assert not (folder / FIRST_LOOK_FILE).exists()
    whole = decode_opening(read_small(folder / OPENING_FILE) or b"")
    assert whole.report == summarize(Bundle(source), 0)


def begun(source: Path, done: Path) -> tuple[Path, int]:
    """The folder in which a first look lies and all is still read, and its lock."""
    folder = cache_folder() / str(prepared_name(str(source), None))
    held = lock(folder)
    assert held is not None
    shutil.copyfile(done / FIRST_LOOK_FILE, folder / FIRST_LOOK_FILE)
    return folder, held


def looking(source: Path) -> tuple[Future[Prepared], Future[Prepared]]:
    """What is shown first, and what it is in the end."""
    first: Future[Prepared] = Future()
    whole: Future[Prepared] = Future()

    def look() -> None:
        try:
            whole.set_result(prepare(str(source), None, first.set_result))
        except CommandError as error:
            whole.set_exception(error)

    threading.Thread(target=look, daemon=True).start()
    return first, whole


def test_it_is_shown_until_all_are_read(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = prepared(source, tmp_path, monkeypatch)
    folder, held = begun(source, done)
    first, whole = looking(source)
    early = first.result(30)
    assert early.share is not None
    assert not whole.done()
    shutil.copytree(done, folder, dirs_exist_ok=True)
    os.close(held)
    late = whole.result(30)
    assert late.share is None
    assert len(early.kernels) == len(late.kernels) == 14_800


def test_who_waits_for_its_kernels_is_told_that_there_are_none(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = prepared(source, tmp_path, monkeypatch)
    folder, held = begun(source, done)
    first, whole = looking(source)
    early = first.result(30)
    FilesWriter(folder).small(prepared_process.REFUSED_FILE, b"it is damaged")
    os.close(held)
    for broken in (whole.result, early.rest):
        with pytest.raises(CommandError, match="it is damaged"):
            broken()

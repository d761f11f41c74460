"""What the explorer reads of a source is what the report says of it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import spark_prof
from spark_prof.datasets.opened import read_side
from spark_prof.datasets.prepared import Prepared, prepare
from spark_prof.errors import CommandError
from spark_prof.traces.bundle import Bundle
from spark_prof.traces.chunks import pieces_folder, progress_name, write_json
from spark_prof.traces.resolve import source_state
from spark_prof.vocabulary import COMPONENTS
from tests.browser.hostile import write_hostile
from tests.browser.sources import OWN
from tests.rows import each_row
from tests.support import Piece, Recorded, eager_decode, kernel, kineto, step

DATA = Path(__file__).parents[1] / "data"


def same(prepared: Prepared, source: str, rank: int | None = None) -> None:
    """It says what the report does, and its kernels add up to the same."""
    report = spark_prof.report(source, rank)
    assert spark_prof.show(prepared.report) == report
    kernels = prepared.kernels
    inside = kernels.step >= 0
    for row in report.components:
        mine = inside & ~np.array(kernels.copies)[kernels.name]
        mine &= np.array([COMPONENTS[code] == row.name for code in kernels.component])
        ns = (kernels.end_ns - kernels.start_ns)[mine].sum()
        assert ns / 1e3 == pytest.approx(row.us)
    # Where nothing tells steps, the whole recording lies where one would be, and is none.
    assert len(prepared.steps) == (report.steps.count if report.run.tells_steps else 1)
    if prepared.timed:
        assert prepared.steps["step_us"].sum() == pytest.approx(report.all_steps.step_us)


def test_a_side_is_of_the_rank_that_was_asked_for_else_of_the_first(tmp_path: Path) -> None:
    few, many = [eager_decode()], [eager_decode(), eager_decode(2, 5000)]
    Recorded({2: few, 3: many}).assemble(tmp_path / "two")
    for rank, steps in ((None, 2), (2, 2), (3, 4)):
        side = read_side(str(tmp_path / "two"), rank)
        assert (len(side.steps), side.facts["rank"]) == (steps, 2 if rank is None else rank)


@pytest.mark.slow
@each_row(
    ("name", "kernels", "timed"),
    [
        ("h100-gpt-oss-20b-mxfp4-graphs", 1944, True),
        ("h100-gpt-oss-20b-mxfp4-eager", 14800, True),
        ("kineto/gpt-oss-graphs", 628, True),
        ("ncu-h100/nvfp4.csv", 20, False),
        ("proton/tree.hatchet", 22, False),
    ],
)
def test_a_source_is_prepared_as_it_is_reported(name: str, kernels: int, timed: bool) -> None:
    found = prepare(str(DATA / name))
    same(found, str(DATA / name))
    assert (len(found.kernels), found.timed, found.live) == (kernels, timed, False)
    assert (found.rank, found.ranks) == (0, (0,))
    assert found.steps[["step_us", "gap_us"]].isna().all(axis=None) != timed
    assert (found.steps["kernels_us"] > 0).all()


def test_a_url_is_read_and_what_was_copied_of_it_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    found = prepare((DATA / "kineto" / "qwen3-eager.json.gz").as_uri())
    assert len(found.kernels) == 666
    assert not list(tmp_path.iterdir())


def test_each_rank_is_read(tmp_path: Path) -> None:
    recorded = Recorded({rank: [eager_decode()] for rank in range(2)})
    found = prepare(str(recorded.assemble(tmp_path / "run").path), 1)
    assert (found.rank, found.ranks, len(found.kernels)) == (1, (0, 1), 4)


_KERNEL = kineto(kernel("k", 100, 200, 1, 50))


def one_step(folder: Path, *kernels: str) -> Bundle:
    """A step with a kernel, or with none."""
    return Recorded({0: [Piece([step(0, 0, 900)], (), *kernels)]}).assemble(folder)


def test_one_kernel_is_enough_and_so_is_a_step_without_any(tmp_path: Path) -> None:
    path = str(one_step(tmp_path / "one", _KERNEL).path)
    found = prepare(path)
    same(found, path)
    assert len(found.kernels) == 1
    found = prepare(str(one_step(tmp_path / "none").path))
    assert (len(found.kernels), len(found.steps)) == (0, 1)


def no_steps(tmp_path: Path) -> str:
    recorded = Recorded({0: [Piece([], (), _KERNEL)]})
    return str(recorded.assemble(tmp_path / "run").path)


def truncated(tmp_path: Path) -> str:
    path = one_step(tmp_path / "run", _KERNEL).path / "kernels-rank0.parquet"
    path.write_bytes(path.read_bytes()[:-20])
    return str(path.parent)


def no_ranks(tmp_path: Path) -> str:
    bundle = one_step(tmp_path / "run", _KERNEL)
    replace(bundle.meta, tables={}).write(bundle.path)
    return str(bundle.path)


def no_bundle(tmp_path: Path) -> str:
    return str(tmp_path / "missing")


def text(tmp_path: Path) -> str:
    (tmp_path / "<b>text\n<b>").write_text("hello")
    return str(tmp_path / "<b>text\n<b>")


def empty(tmp_path: Path) -> str:
    (tmp_path / "trace.json").write_bytes(b"")
    return str(tmp_path / "trace.json")


@each_row("source", [no_steps, truncated, no_ranks, no_bundle, text, empty])
def test_what_cannot_be_reported_is_refused_alike(
    tmp_path: Path, source: Callable[[Path], str]
) -> None:
    path = source(tmp_path)
    with pytest.raises(CommandError) as wanted:
        spark_prof.report(path)
    with pytest.raises(CommandError) as found:
        prepare(path)
    assert str(found.value) == str(wanted.value)


def test_no_rank_of_that_number_and_a_path_that_is_no_utf8_are_refused(tmp_path: Path) -> None:
    bundle = str(Recorded({0: [eager_decode()]}).assemble(tmp_path / "run").path)
    with pytest.raises(CommandError, match="has no rank 7; it has 0"):
        prepare(bundle, 7)
    path = tmp_path / os.fsdecode(b"run-\xff")
    shutil.copytree(bundle, path)
    with pytest.raises(CommandError, match=r"run-\? cannot be read: its name is no UTF-8"):
        prepare(str(path))


def test_a_recording_that_goes_on_is_shown_as_far_as_it_is(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    pieces = Recorded({0: [eager_decode()]}).write(folder)
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    try:
        write_json(pieces, progress_name("rank0"), {"pid": process.pid, "recorded": 2})
        states = [source_state(str(folder))]
        before = {path.name: path.read_bytes() for path in pieces.iterdir()}
        found = prepare(str(folder))
        assert (found.live, found.report.steps.count, len(found.kernels)) == (True, 2, 4)
        assert found.report.run.source == str(folder)
        assert any("still being recorded" in note for note in found.report.notes)
        assert [path.name for path in folder.iterdir()] == ["pieces"]
        assert {path.name: path.read_bytes() for path in pieces.iterdir()} == before

        eager_decode(2, 2000).write(pieces, "rank0", 1)
        states.append(source_state(str(folder)))
        found = prepare(str(folder))
        assert (found.live, found.report.steps.count, len(found.kernels)) == (True, 4, 8)
    finally:
        process.kill()
        process.wait()
    states.append(source_state(str(folder)))
    found = prepare(str(folder))
    assert (found.live, found.report.steps.count) == (False, 4)
    assert not pieces_folder(folder).exists()
    states.append(source_state(str(folder)))
    assert len(set(states)) == 4
    same(prepare(str(folder)), str(folder))


def test_a_recording_without_a_piece_is_refused_by_its_name(tmp_path: Path) -> None:
    pieces = Recorded({0: []}).write(tmp_path / "run")
    write_json(pieces, progress_name("rank0"), {"pid": os.getpid(), "recorded": 0})
    with pytest.raises(CommandError, match=f"^{tmp_path / 'run'} is being recorded and has no"):
        prepare(str(tmp_path / "run"))


def test_a_recording_whose_every_text_is_an_attack_is_prepared(tmp_path: Path) -> None:
    found = prepare(str(write_hostile(OWN["graphs"], tmp_path / "hostile")), None)
    assert len(found.report.kernels) > 10

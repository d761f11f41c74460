"""A bundle made from pieces: whole, killed, damaged, and still being written."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from spark_prof.errors import CommandError
from spark_prof.traces.assemble import UNREADABLE_FOLDER, assemble, open_bundle
from spark_prof.traces.chunks import (
    RECORDING_FILE,
    append_log,
    progress_name,
    write_json,
)
from tests.rows import each_row
from tests.support import Recorded, eager_decode, engine, tensor_row


def recording(**more: object) -> Recorded:
    """Two ranks, two pieces each, and a scheduler."""
    ranks = {rank: [eager_decode(), eager_decode(2, 5000)] for rank in (0, 1)}
    return Recorded(ranks, {0: [engine(0, -10, 950), engine(1, 900, 1950)]}, **more)  # type: ignore[arg-type]


def test_the_bundle_says_how_it_was_made(tmp_path: Path) -> None:
    made = recording(settings={"steps": 4, "backend": "torch"}, facts={"vllm": "0.32.0"})
    meta = made.assemble(tmp_path / "b", "interrupted").meta
    assert meta.state == "interrupted"
    assert meta.command == ("vllm", "serve", "tiny")
    assert meta.settings["steps"] == 4
    assert meta.facts["rank1"]["vllm"] == "0.32.0"
    assert "modules" not in meta.facts["rank1"]


def test_what_a_process_logged_is_lost_and_in_the_log(tmp_path: Path) -> None:
    folder = recording().write(tmp_path / "b")
    append_log(folder, "rank1", 5, "hook facts failed")
    with open(folder / "rank1.log.jsonl", "ab") as file:
        file.write(b'12\n{"time_ns": 1}\n{"time_ns": 6, "proc\xc3')  # killed while it wrote
    bundle = assemble(tmp_path / "b", state="complete")
    assert bundle.meta.lost == ("rank1: hook facts failed",)
    assert bundle.frame("log", 0)["message"].tolist() == ["hook facts failed"]


@each_row("name", ["rank0.00001.steps.npy", "rank0.00001.events.npy", "engine0.00000.engine.npy"])
@each_row("left", [b"", b"\x93NUMPY", b"garbage", None])
def test_a_damaged_array_costs_its_own_rows_only(
    tmp_path: Path, name: str, left: bytes | None
) -> None:
    folder = recording().write(tmp_path / "b")
    (folder / name).unlink()
    if left is not None:
        (folder / name).write_bytes(left)
    bundle = assemble(tmp_path / "b", state="salvaged")
    assert bundle.ranks == (0, 1)
    assert len(bundle.frame("steps", 0)) == (2 if "steps" in name else 4)
    assert len(bundle.frame("ranges", 0)) == (6 if "events" in name else 12)
    assert len(bundle.frame("kernels", 0)) == 8
    steps = bundle.frame("kernels", 0)["step"].tolist()
    assert steps == ([0, 0, 1, 1, -1, -1, -1, -1] if "steps" in name else [0, 0, 1, 1, 2, 2, 3, 3])
    absent = left is None and "events" in name
    assert len(bundle.meta.lost) == (left is not None) + ("steps" in name) + absent
    kept = tmp_path / "b" / UNREADABLE_FOLDER / name
    assert (kept.read_bytes() if kept.exists() else None) == left


@pytest.mark.parametrize(
    "name", ["rank0.00001.steps.npy", "rank0.00001.events.npy", "engine0.00000.engine.npy"]
)
def test_zeros_in_the_place_of_rows_are_damage(tmp_path: Path, name: str) -> None:
    path = recording().write(tmp_path / "b") / name
    content, row = path.read_bytes(), np.load(path).dtype.itemsize
    path.write_bytes(content[:-row] + bytes(row))
    lost = assemble(tmp_path / "b", state="salvaged").meta.lost
    assert any(f"{name} is damaged: it holds rows without a time" in line for line in lost)
    assert (tmp_path / "b" / UNREADABLE_FOLDER / name).exists()


def test_a_lost_first_piece_does_not_hide_the_second(tmp_path: Path) -> None:
    folder = recording().write(tmp_path / "b")
    (folder / "rank0.00000.steps.npy").unlink()
    bundle = assemble(tmp_path / "b", state="salvaged")
    assert bundle.frame("steps", 0)["step"].tolist() == [2, 3]
    # The rows of the piece whose steps are missing are there, its launches known by the thread.
    assert bundle.frame("kernels", 0)["module"].tolist() == [5, 6] * 4


@each_row("left", ['{"process": "ra', "[]", '{"modules": 1}', None])
def test_damaged_facts_cost_the_names_of_their_modules_only(
    tmp_path: Path, left: str | None
) -> None:
    folder = recording().write(tmp_path / "b")
    (folder / "rank1.facts.json").unlink()
    if left is not None:
        (folder / "rank1.facts.json").write_text(left)
    bundle = assemble(tmp_path / "b", state="salvaged")
    assert bundle.ranks == (0, 1)
    for table in ("steps", "ranges", "kernels"):
        assert len(bundle.frame(table, 1)) == len(bundle.frame(table, 0))
    assert bundle.frame("modules", 1)["path"].tolist() == [f"unknown.{n}" for n in range(7)]
    assert set(bundle.frame("kernels", 1)["layer"]) == {-1}
    assert bundle.meta.lost == ("rank1: what it said about itself is lost: modules have no names",)


TENSORS = [
    tensor_row("model.layers.0.self_attn.qkv_proj", 1 << 46, 4096),
    tensor_row("", 1 << 45, 1 << 21, kind="pool", layer=-1, component="", format=""),
]


def test_where_the_tensors_lie_is_a_table_of_each_rank(tmp_path: Path) -> None:
    bundle = recording(tensors=TENSORS).assemble(tmp_path / "b")
    for rank in bundle.ranks:
        found = bundle.frame("tensors", rank)
        assert found.astype({"kind": str, "component": str, "format": str}).to_dict("records") == [
            {name: row[name] for name in found} for row in TENSORS
        ]
    assert bundle.meta.lost == ()


@each_row(
    "left",
    [
        "",
        '{"tensors": [{"addr',
        "[]",
        '{"tensors": 1}',
        json.dumps({"tensors": [TENSORS[0] | {"address": 1 << 63}]}),
        json.dumps({"tensors": [TENSORS[0] | {"bytes": "many"}]}),
        json.dumps({"tensors": [TENSORS[0] | {"module": "\ud800"}]}),
        json.dumps({"tensors": [{k: v for k, v in TENSORS[0].items() if k != "shape"}]}),
    ],
)
def test_damaged_tensors_are_told_as_lost(tmp_path: Path, left: str) -> None:
    folder = recording(tensors=TENSORS).write(tmp_path / "b")
    (folder / "rank1.tensors.json").write_text(left)
    bundle = assemble(tmp_path / "b", state="salvaged")
    assert (len(bundle.frame("tensors", 0)), len(bundle.frame("tensors", 1))) == (2, 0)
    assert len(bundle.frame("kernels", 1)) == len(bundle.frame("kernels", 0))
    (line,) = bundle.meta.lost
    assert line.startswith("rank1: rank1.tensors.json is damaged")
    assert (tmp_path / "b" / UNREADABLE_FOLDER / "rank1.tensors.json").exists()


def test_nothing_recorded(tmp_path: Path) -> None:
    Recorded({0: []}, {0: []}).write(tmp_path / "b")
    with pytest.raises(CommandError, match="no step was recorded"):
        assemble(tmp_path / "b", state="complete")


def test_a_recording_that_died_is_salvaged_when_it_is_opened(tmp_path: Path) -> None:
    folder = recording().write(tmp_path / "b")
    write_json(folder, progress_name("rank0"), {"pid": _ended_process(), "finished": False})
    bundle = open_bundle(tmp_path / "b")
    assert bundle.meta.state == "salvaged"
    assert open_bundle(tmp_path / "b").meta == bundle.meta


@pytest.mark.parametrize("name", [progress_name("rank0"), RECORDING_FILE])
def test_what_is_still_being_recorded_is_left_alone(tmp_path: Path, name: str) -> None:
    folder = recording().write(tmp_path / "b")
    write_json(folder, name, {"pid": os.getpid(), "finished": False})
    before = sorted(path.name for path in folder.iterdir())
    with pytest.raises(CommandError, match="still being recorded"):
        open_bundle(tmp_path / "b")
    assert sorted(path.name for path in folder.iterdir()) == before


@each_row(
    "value",
    [{"pid": os.getpid(), "finished": True}, {"pid": "x"}, {"pid": -1}, {"pid": 2**80}, {}, [3]],
)
def test_a_process_that_has_finished_or_has_no_number_is_not_waited_for(
    tmp_path: Path, value: object
) -> None:
    folder = recording().write(tmp_path / "b")
    write_json(folder, progress_name("rank0"), value)
    assert open_bundle(tmp_path / "b").meta.state == "salvaged"


def test_a_later_process_of_the_same_number_is_not_waited_for(tmp_path: Path) -> None:
    folder = recording().write(tmp_path / "b")
    write_json(folder, progress_name("rank0"), {"pid": os.getpid(), "finished": False})
    os.utime(folder / progress_name("rank0"), (1_000_000, 1_000_000))  # long before this process
    assert open_bundle(tmp_path / "b").meta.state == "salvaged"


def test_a_bundle_that_cannot_be_written_keeps_its_pieces(tmp_path: Path) -> None:
    folder = recording().write(tmp_path / "b")
    (tmp_path / "b" / "steps-rank1.parquet").mkdir()  # in the way
    before = sorted(path.name for path in folder.iterdir())
    with pytest.raises(CommandError, match="pieces are kept"):
        assemble(tmp_path / "b", state="complete")
    assert sorted(path.name for path in folder.iterdir()) == before
    assert not (tmp_path / "b" / "steps-rank0.parquet").exists()
    (tmp_path / "b" / "steps-rank1.parquet").rmdir()
    assert open_bundle(tmp_path / "b").ranks == (0, 1)


def _ended_process() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_no_memory_costs_no_piece(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recording().write(tmp_path / "b")

    def greedy(*_: object, **__: object) -> None:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr("spark_prof.traces.assemble.PieceTables", greedy)
        with pytest.raises(CommandError, match="not enough memory; the recorded pieces are kept"):
            assemble(tmp_path / "b", state="complete")
    assert len(assemble(tmp_path / "b", state="complete").frame("steps", 0)) == 4

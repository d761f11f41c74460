"""Short pieces are joined as one: the same tables as one by one, and a damaged one costs itself."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from spark_prof.traces import assemble as assemble_module
from spark_prof.traces.bundle import Bundle
from spark_prof.traces.chunk_tables import groups
from spark_prof.traces.chunks import array_name, kineto_name
from tests.support import (
    ATTENTION,
    PREPARE,
    QKV,
    Piece,
    Recorded,
    call,
    eager_decode,
    kineto,
    operator,
    step,
)

TABLES = ("steps", "kernels", "ranges", "host", "overhead")


def on_cpu(number: int, begin: int) -> Piece:
    """One step with two operators, one of which calls another."""
    calls = call(PREPARE, begin, begin + 50) + call(QKV, begin + 100, begin + 300)
    calls += call(ATTENTION, begin + 300, begin + 500)
    ran = (
        operator("aten::linear", begin + 110, begin + 250),
        operator("aten::mm", begin + 120, begin + 240),
        operator("vllm::unified_attention", begin + 310, begin + 450),
    )
    return Piece([step(number, begin, begin + 900)], calls, kineto(*ran))


PIECES = [on_cpu(number, 1000 * number) for number in range(6)]


def written(tmp_path: Path, pieces: list[Piece]) -> Path:
    return Recorded({0: pieces}).write(tmp_path / "b")


def tables(bundle: Bundle) -> dict[str, pd.DataFrame]:
    return {name: bundle.frame(name, 0) for name in TABLES}


@pytest.mark.parametrize(
    "pieces", [PIECES, [eager_decode(2 * n, 2000 * n) for n in range(3)]], ids=["cpu", "gpu"]
)
def test_the_tables_are_those_of_single_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pieces: list[Piece]
) -> None:
    together = tables(Recorded({0: pieces}).assemble(tmp_path / "together"))
    monkeypatch.setattr(assemble_module, "groups", lambda _, __, numbers: [[n] for n in numbers])
    singly = tables(Recorded({0: pieces}).assemble(tmp_path / "singly"))
    assert together["steps"]["piece"].tolist() == [n for n, p in enumerate(pieces) for _ in p.steps]
    for name in TABLES:
        pd.testing.assert_frame_equal(together[name], singly[name], check_categorical=False)


def test_they_are_joined_up_to_a_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = written(tmp_path, PIECES)
    assert list(groups(folder, "rank0", range(6))) == [[0, 1, 2, 3, 4, 5]]
    largest = max(path.stat().st_size for path in folder.glob("*.kineto.json"))
    monkeypatch.setattr("spark_prof.traces.chunk_tables._GROUP_BYTES", 2 * largest)
    assert list(groups(folder, "rank0", range(6))) == [[0, 1], [2, 3], [4, 5]]


def test_a_clock_that_was_set_back_begins_a_new_one(tmp_path: Path) -> None:
    folder = written(tmp_path, [on_cpu(0, 5000), on_cpu(1, 6000), on_cpu(2, 500), on_cpu(3, 1500)])
    assert list(groups(folder, "rank0", range(4))) == [[0, 1], [2, 3]]


@pytest.mark.parametrize("kind", ["steps", "kineto", "activity"])
def test_what_has_other_files_or_lacks_some_stays_alone(tmp_path: Path, kind: str) -> None:
    folder = written(tmp_path, PIECES)
    if kind == "steps":
        (folder / array_name("rank0", "steps", 2)).unlink()
    elif kind == "kineto":
        (folder / kineto_name("rank0", 2)).unlink()
    else:
        (folder / "rank0.00002.activity.bin").touch()
    assert list(groups(folder, "rank0", range(6))) == [[0, 1], [2], [3, 4, 5]]


@pytest.mark.parametrize("name", [array_name("rank0", "events", 3), kineto_name("rank0", 3)])
def test_a_damaged_file_costs_its_own_rows_only(tmp_path: Path, name: str) -> None:
    folder = written(tmp_path, PIECES)
    (folder / name).write_bytes(b"{")
    bundle = assemble_module.assemble(tmp_path / "b", state="complete")
    assert bundle.frame("steps", 0)["step"].tolist() == list(range(6))
    kernels, ranges = bundle.frame("kernels", 0), bundle.frame("ranges", 0)
    lacking = kernels if "kineto" in name else ranges
    assert sorted(set(lacking["step"])) == [0, 1, 2, 4, 5]
    assert len(bundle.meta.lost) == 1
    assert "piece 3" in bundle.meta.lost[0]

"""Tables for others: CSV that no spreadsheet runs, Parquet that is a bundle again."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from spark_prof.analyzers.layer_consistency import LABELS
from spark_prof.exporters.table_folder import Selection, safe_texts, write_tables
from spark_prof.traces.bundle import Bundle
from tests.support import Piece, Recorded, call, eager_decode, kernel, kineto, step

DATA = Path(__file__).parents[1] / "data"
CAPTURES = sorted(path.name for path in DATA.glob("h100-*"))
FORMULAS = ("=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1")


@pytest.mark.parametrize("capture", CAPTURES)
def test_parquet_is_the_same_bundle_again(capture: str, tmp_path: Path) -> None:
    bundle = Bundle(DATA / capture)
    write_tables(bundle, Selection(), tmp_path, "parquet")
    again = Bundle(tmp_path)
    assert again.meta == bundle.meta
    for name in bundle.meta.tables:
        table, _, rank = name.removesuffix(".parquet").rpartition("-rank")
        expected = bundle.frame(table, int(rank)).astype(str)
        assert again.frame(table, int(rank)).astype(str).equals(expected)
    placed = pq.read_table(tmp_path / "placed-rank0.parquet")
    assert len(placed) == bundle.meta.tables["kernels-rank0.parquet"]
    assert set(LABELS) <= set(placed.column_names)


def test_a_part_says_that_it_is_one(tmp_path: Path) -> None:
    bundle = Bundle(DATA / CAPTURES[0])
    write_tables(bundle, Selection(first=1, stop=3), tmp_path, "parquet")
    again = Bundle(tmp_path)
    assert set(again.frame("steps", 0)["step"]) == {1, 2}
    assert set(again.frame("kernels", 0)["step"]) == {1, 2}
    assert len(again.frame("host", 0)) == len(bundle.frame("host", 0))
    assert any("part of a recording" in line for line in again.meta.lost)


def test_csv_holds_every_row_and_no_formula(tmp_path: Path) -> None:
    events = [kernel(name, 100 + i, 101 + i, i + 1, 10) for i, name in enumerate(FORMULAS)]
    piece = Piece([step(0, 0, 900)], call(3, 5, 800), kineto(*events))
    bundle = Recorded({0: [piece]}).assemble(tmp_path / "b")
    (tmp_path / "out").mkdir()
    write_tables(bundle, Selection(), tmp_path / "out", "csv")
    for name in ("kernels-rank0.csv", "placed-rank0.csv"):
        with open(tmp_path / "out" / name, newline="") as file:
            rows = list(csv.DictReader(file))
        assert sorted(row["name"] for row in rows) == sorted(f"'{name}" for name in FORMULAS)
        starts = bundle.frame("kernels", 0)["start_ns"].tolist()
        assert [int(row["start_ns"]) for row in rows] == starts


def test_csv_leaves_empty_what_was_not_measured() -> None:
    table = pa.table({"x": [1.5, float("nan")], "t": ["a", "-b"]})
    assert safe_texts(table).to_pydict() == {"x": [1.5, None], "t": ["a", "'-b"]}


def test_of_one_rank_machine_code_is_copied_but_no_links(tmp_path: Path) -> None:
    bundle = Recorded({0: [eager_decode()], 1: [eager_decode()]}).assemble(tmp_path / "b")
    cubins = tmp_path / "b" / "cubins"
    cubins.mkdir()
    (cubins / "00.cubin").write_bytes(b"code")
    (tmp_path / "secret").write_text("secret")
    (cubins / "01.cubin").symlink_to(tmp_path / "secret")
    (tmp_path / "out").mkdir()
    write_tables(bundle, Selection(ranks=(1,)), tmp_path / "out", "parquet")
    assert Bundle(tmp_path / "out").ranks == (1,)
    assert [path.name for path in (tmp_path / "out" / "cubins").iterdir()] == ["00.cubin"]


def test_no_csv_of_meta(tmp_path: Path) -> None:
    write_tables(Bundle(DATA / CAPTURES[0]), Selection(), tmp_path, "csv")
    assert not (tmp_path / "meta.json").exists()
    facts = json.loads((DATA / CAPTURES[0] / "meta.json").read_text())
    tables = {name.removesuffix(".parquet") for name in facts["tables"]} | {"placed-rank0"}
    assert {path.stem for path in tmp_path.iterdir()} == tables

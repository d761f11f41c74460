"""The table of drafts goes wherever a recording goes: merged, exported, shared, asked in SQL."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from spark_prof.datasets.sql_query import query
from spark_prof.exporters.shared_recording import share
from spark_prof.exporters.table_folder import Selection, write_tables
from spark_prof.traces.assemble import assemble
from spark_prof.traces.bundle import Bundle
from spark_prof.traces.chunks import DRAFT_DTYPE, array_name, pieces_folder, write_array
from spark_prof.traces.tables import TABLES
from tests.support import Recorded, drafted, eager_decode, engine

ROWS = [drafted(0, 3, 2), drafted(1, 3, -1, request=1)]
COLUMNS = TABLES["drafts"].schema.names


def recorded() -> Recorded:
    engines = {0: [engine(0, 0, 900), engine(1, 1000, 1900)]}
    return Recorded({0: [eager_decode()]}, engines, drafts={0: ROWS})


def values(bundle: Bundle) -> list[dict[str, int]]:
    found = bundle.frame("drafts", 0)
    return [dict(zip(COLUMNS, map(int, row), strict=True)) for row in found.to_numpy()]


def test_it_is_assembled_and_named_like_the_recorded_array(tmp_path: Path) -> None:
    assert list(DRAFT_DTYPE.names or ()) == COLUMNS
    assert values(recorded().assemble(tmp_path / "b")) == ROWS


def test_a_recording_without_it_is_read_as_one_without_drafts(tmp_path: Path) -> None:
    bundle = Recorded({0: [eager_decode()]}, {0: [engine(0, 0, 900)]}).assemble(tmp_path / "b")
    assert not any(name.startswith("drafts") for name in bundle.meta.tables)
    assert bundle.frame("drafts", 0).columns.tolist() == COLUMNS


@pytest.mark.parametrize("accepted", [4, -2])
def test_a_damaged_piece_is_told_and_put_aside(tmp_path: Path, accepted: int) -> None:
    recorded().write(tmp_path / "b")
    name = array_name("engine0", "drafts", 1)
    damaged = np.array([(100, 0, 10, 3, accepted)], dtype=DRAFT_DTYPE)
    write_array(pieces_folder(tmp_path / "b"), name, damaged)
    bundle = assemble(tmp_path / "b", state="complete")
    assert values(bundle) == ROWS
    [line] = [line for line in bundle.meta.lost if name in line]
    assert "more accepted tokens than drafts" in line


@pytest.mark.parametrize("kind", ["parquet", "csv"])
def test_it_is_exported(tmp_path: Path, kind: str) -> None:
    bundle = recorded().assemble(tmp_path / "b")
    (out := tmp_path / "out").mkdir()
    write_tables(bundle, Selection(), out, kind)
    assert (out / f"drafts-rank0.{kind}").exists()
    if kind == "parquet":
        assert values(Bundle(out)) == ROWS


def test_it_is_shared(tmp_path: Path) -> None:
    share(recorded().assemble(tmp_path / "b"), tmp_path / "b.zip")
    with zipfile.ZipFile(tmp_path / "b.zip") as archive:
        archive.extract("drafts-rank0.parquet", tmp_path)
    assert pq.read_table(tmp_path / "drafts-rank0.parquet").to_pylist() == ROWS


def test_acceptance_by_position_can_be_asked_in_sql(tmp_path: Path) -> None:
    bundle = recorded().assemble(tmp_path / "b")
    sql = (
        "SELECT position, count(*), count(*) FILTER (accepted > position) FROM drafts, "
        "range(3) AS places(position) WHERE accepted >= 0 AND position < proposed "
        "GROUP BY position ORDER BY position"
    )
    with query({"b": bundle}, sql) as result:
        assert [tuple(row) for row in result.rows()] == [(0, 1, 1), (1, 1, 1), (2, 1, 0)]

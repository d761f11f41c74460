"""Columns read straight into arrays are those that Arrow reads."""

from __future__ import annotations

import random
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from spark_prof.errors import CommandError
from spark_prof.traces import bundle as bundles
from spark_prof.traces.bundle import Bundle, table_file
from spark_prof.traces.columns import read_columns
from spark_prof.traces.tables import TABLES
from tests.rows import each_row
from tests.support import Recorded, eager_decode

NAMES = pa.dictionary(pa.int32(), pa.string())
SCHEMA = pa.schema([("name", NAMES), ("ns", pa.int64()), ("on", pa.bool_()), ("x", pa.float64())])


def _write(path: Path, rows: int, group: int, seed: int = 0) -> pd.DataFrame:
    """A table whose row groups have names of their own, in another order each."""
    chosen = random.Random(seed)
    names = [f"k{chosen.randrange(4) + row // group}" for row in range(rows)]
    frame = pd.DataFrame({
        "name": names, "ns": [(1 << 62) + row for row in range(rows)],
        "on": [row % 3 == 0 for row in range(rows)], "x": [row / 7 for row in range(rows)],
    })  # fmt: skip
    table = pa.table({name: frame[name].to_list() for name in frame})
    pq.write_table(table.cast(SCHEMA), path, row_group_size=group)
    return frame


@each_row("seed", range(4))
@each_row(("rows", "group"), [(1, 5), (50, 7), (50, 50), (1000, 90)])
def test_every_column_in_its_order(tmp_path: Path, rows: int, group: int, seed: int) -> None:
    wanted = _write(tmp_path / "t.parquet", rows, group, seed)
    found = pd.DataFrame(dict(read_columns(tmp_path / "t.parquet", SCHEMA)))
    assert list(found["name"].cat.categories) == list(dict.fromkeys(wanted["name"]))
    pd.testing.assert_frame_equal(found.astype({"name": str}), wanted.astype({"name": str}))


@pytest.fixture
def bundle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bundle:
    """A small bundle that is read as a large one."""
    monkeypatch.setattr(bundles, "_LARGE", 1)
    return Recorded({0: [eager_decode()]}).assemble(tmp_path / "b")


@pytest.mark.parametrize("table", ["kernels", "steps", "host"])
def test_a_large_table_is_the_same_frame(bundle: Bundle, table: str) -> None:
    wanted = bundle.arrow(table, 0).to_pandas()
    pd.testing.assert_frame_equal(bundle.frame(table, 0), wanted, check_categorical=False)
    columns = list(reversed(TABLES[table].schema.names))[:3]
    assert list(bundle.frame(table, 0, columns)) == columns


def test_a_large_table_from_before_a_column_was_added(bundle: Bundle) -> None:
    path = bundle.path / table_file("kernels", 0)
    pq.write_table(pq.read_table(path, partitioning=None).drop(["placed_by"]), path)
    assert set(bundle.frame("kernels", 0, ["placed_by", "name"])["placed_by"]) == {""}


def test_a_large_table_with_a_hole(bundle: Bundle) -> None:
    path = bundle.path / table_file("kernels", 0)
    table = pq.read_table(path, partitioning=None)
    column = table.schema.get_field_index("end_ns")
    holed = pa.array([None, *table["end_ns"].to_pylist()[1:]], pa.int64())
    pq.write_table(table.set_column(column, table.schema.field(column), holed), path)
    with pytest.raises(CommandError, match="end_ns lacks values"):
        bundle.frame("kernels", 0)

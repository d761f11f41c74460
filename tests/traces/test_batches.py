"""Batches of a table are the table."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from spark_prof.errors import CommandError
from spark_prof.traces import columns
from spark_prof.traces.bundle import Bundle, table_batches
from spark_prof.traces.tables import TABLES
from tests.rows import each_row
from tests.support import Recorded, eager_decode

DATA = Path(__file__).parents[1] / "data"


@each_row("rows", [1, 7, 1000, 1 << 20])
@each_row("capture", sorted(path.name for path in DATA.glob("h100-*")))
def test_together_they_are_the_table(
    capture: str, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(columns, "ROWS", rows)
    bundle = Bundle(DATA / capture)
    # Captures of before a column came have its default.
    for table in ("steps", "kernels") if rows > 1 else ("steps",):
        found = pa.concat_tables(table_batches(bundle, table, 0))
        assert found.schema.names == TABLES[table].schema.names
        assert found.to_pandas().astype(str).equals(bundle.frame(table, 0).astype(str))


def test_a_table_that_is_not_there_has_none(tmp_path: Path) -> None:
    bundle = Recorded({0: [eager_decode()]}).assemble(tmp_path / "b")
    assert list(table_batches(bundle, "counters", 0)) == []


def test_missing_values_are_refused(tmp_path: Path) -> None:
    bundle = Recorded({0: [eager_decode()]}).assemble(tmp_path / "b")
    path = bundle.path / "steps-rank0.parquet"
    found = pq.read_table(path)
    place = found.schema.get_field_index("start_ns")
    holes = pa.array([None] * len(found), pa.int64())
    pq.write_table(found.set_column(place, found.schema.field(place), holes), path)
    with pytest.raises(CommandError, match="lacks values"):
        list(table_batches(bundle, "steps", 0))

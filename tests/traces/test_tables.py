"""Every table says what it holds, and its files keep their columns."""

from __future__ import annotations

import pytest

from spark_prof.traces.pieces import ENGINE_DTYPE, STEP_DTYPE
from spark_prof.traces.tables import TABLES, Table, empty_table

COLUMNS = {
    "kernels": "name:s kind:s start_ns:8 end_ns:8 part:4 device:4 stream:8 correlation:8 "
    "graph_node:8 step:4 module:4 layer:4 grid:s block:s registers:4 shared_bytes:4 bytes:8",
    "steps": "step:4 key:8 phase:s start_ns:8 end_ns:8 prefill_requests:4 prefill_tokens:4 "
    "decode_requests:4 decode_tokens:4 context_tokens:8 piece:4",
    "engine": "key:8 schedule_ns:8 update_ns:8 scheduled_tokens:4 output_tokens:4 "
    "output_requests:4 unfinished:4",
    "ranges": "module:4 start_ns:8 end_ns:8 thread:8 step:4",
    "modules": "module:4 path:t type:t layer:4 component:s",
    "layers": "path:t type:t layer:4 component:s quant_method:t kernel:t weight_dtype:t shape:t "
    "bytes:8 parameters:t",
    "host": "name:s start_ns:8 end_ns:8 thread:8 correlation:8",
    "log": "time_ns:8 process:t message:t",
}
"""The schema of bundles: who changes it changes spark_prof.traces.bundle.SCHEMA too."""

SHORT = {"int32": "4", "int64": "8", "string": "t"}


def test_the_schema_of_bundles() -> None:
    found = {
        table.name: " ".join(f"{c.name}:{SHORT.get(str(c.type), 's')}" for c in table.columns)
        for table in TABLES.values()
    }
    assert found == COLUMNS


@pytest.mark.parametrize("table", TABLES.values(), ids=lambda table: table.name)
def test_every_table_and_column_is_documented(table: Table) -> None:
    assert table.meaning
    names = [column.name for column in table.columns]
    assert len(set(names)) == len(names)
    for column in table.columns:
        assert len(column.meaning) > 3, column.name
        assert column.meaning[0] != " ", column.name
        assert "  " not in column.meaning, column.name


@pytest.mark.parametrize("table", TABLES.values(), ids=lambda table: table.name)
def test_an_empty_table_has_every_column(table: Table) -> None:
    empty = empty_table(table.name)
    assert empty.num_rows == 0
    assert empty.schema.equals(table.schema)


def test_the_recorded_arrays_fill_their_tables() -> None:
    steps = {column.name for column in TABLES["steps"].columns}
    assert set(STEP_DTYPE.names or ()) - {"thread"} == steps - {"piece"}
    assert list(ENGINE_DTYPE.names or ()) == TABLES["engine"].schema.names

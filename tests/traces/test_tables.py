"""Every table says what it holds, and its files keep their columns."""

from __future__ import annotations

import pyarrow as pa

from spark_prof.traces.pieces import COUNTER_DTYPE, ENGINE_DTYPE, STEP_DTYPE
from spark_prof.traces.tables import TABLES, Column, Table, empty_table
from tests.rows import each_row

COLUMNS = {
    "kernels": "name:s kind:s start_ns:8 end_ns:8 part:4 device:4 stream:8 correlation:8 "
    "graph_node:8 step:4 module:4 layer:4 grid:s block:s registers:4 shared_bytes:4 bytes:8 "
    "cubin:s placed_by:s",
    "steps": "step:4 key:8 phase:s start_ns:8 end_ns:8 prefill_requests:4 prefill_tokens:4 "
    "decode_requests:4 decode_tokens:4 context_tokens:8 piece:4 watched:b",
    "engine": "key:8 schedule_ns:8 update_ns:8 scheduled_tokens:4 output_tokens:4 "
    "output_requests:4 unfinished:4",
    "ranges": "module:4 start_ns:8 end_ns:8 thread:8 step:4",
    "modules": "module:4 path:t type:t layer:4 component:s",
    "layers": "path:t type:t layer:4 component:s quant_method:t kernel:t weight_dtype:t shape:t "
    "bytes:8 parameters:t",
    "host": "name:s start_ns:8 end_ns:8 thread:8 correlation:8",
    "graph_nodes": "node:8 original:8 graph:8 created_ns:8 module:4 layer:4 capture:4",
    "captures": "capture:4 start_ns:8 end_ns:8 tokens:4 mode:s",
    "tensors": "address:8 bytes:8 kind:s name:t module:t type:t layer:4 component:s shape:t "
    "dtype:t format:s",
    "arguments": "node:8 correlation:8 argument:4 offset:4 size:4 address:8",
    "cubins": "hash:t bytes:8 source:s functions:t",
    "functions": "hash:t function:t name:t architecture:s suffix:s registers:4 instructions:8 "
    "opcodes:t",
    "counters": "start_ns:8 end_ns:8 dram_read_bytes:f dram_write_bytes:f tensor_active:f "
    "sm_active:f warps_active:f",
    "overhead": "name:s start_ns:8 end_ns:8",
    "markers": "name:s domain:s start_ns:8 end_ns:8 thread:8 step:4 nested:b",
    "metrics": "name:s launch:4 metric:s value:f unit:s",
    "clients": "run:4 source:t tool:s model:t label:t clock:s start_ns:8 local_end_ns:8 "
    "concurrency:8 completed:8 failed:8 input_tokens:8 output_tokens:8 mean_concurrency:f "
    "request_rate:f duration_s:f request_throughput:f output_throughput:f total_throughput:f "
    "tokens_per_chunk:f acceptance_length:f itl_per_token:b ttft_mean_us:f ttft_median_us:f "
    "ttft_p90_us:f "
    "ttft_p99_us:f ttft_std_us:f tpot_mean_us:f tpot_median_us:f tpot_p90_us:f tpot_p99_us:f "
    "tpot_std_us:f itl_mean_us:f itl_median_us:f itl_p90_us:f itl_p99_us:f itl_std_us:f "
    "e2e_mean_us:f e2e_median_us:f e2e_p90_us:f e2e_p99_us:f e2e_std_us:f ttft_derived:s "
    "tpot_derived:s itl_derived:s e2e_derived:s notes:t",
    "requests": "run:4 start_ns:8 ttft_us:f e2e_us:f input_tokens:8 output_tokens:8 chunks:8 "
    "failed:b",
    "log": "time_ns:8 process:t message:t",
}
"""The schema of bundles: who changes it changes spark_prof.traces.bundle.SCHEMA too, but for
columns that are added with a default."""

SHORT = {"int32": "4", "int64": "8", "string": "t", "bool": "b", "double": "f"}


def test_the_schema_of_bundles() -> None:
    found = {
        table.name: " ".join(f"{c.name}:{SHORT.get(str(c.type), 's')}" for c in table.columns)
        for table in TABLES.values()
    }
    assert found == COLUMNS


@each_row("table", TABLES.values())
def test_every_table_and_column_is_documented(table: Table) -> None:
    assert table.meaning
    names = [column.name for column in table.columns]
    assert len(set(names)) == len(names)
    for column in table.columns:
        assert len(column.meaning) > 3, column.name
        assert column.meaning[0] != " ", column.name
        assert "  " not in column.meaning, column.name


@each_row("table", TABLES.values())
def test_an_empty_table_has_every_column(table: Table) -> None:
    empty = empty_table(table.name)
    assert empty.num_rows == 0
    assert empty.schema.equals(table.schema)


def test_the_recorded_arrays_fill_their_tables() -> None:
    steps = {column.name for column in TABLES["steps"].columns}
    assert set(STEP_DTYPE.names or ()) - {"thread"} == steps - {"piece"}
    assert list(ENGINE_DTYPE.names or ()) == TABLES["engine"].schema.names
    assert list(COUNTER_DTYPE.names or ()) == TABLES["counters"].schema.names


def _older(*names: str) -> pa.Schema:
    """The schema of `GROWN` as far as these columns."""
    return pa.schema([GROWN.schema.field(name) for name in names])


GROWN = Table(
    "grown",
    "a table that got two columns later",
    (
        Column("old", pa.int64(), "there from the beginning"),
        Column("text", pa.string(), "later", ""),
        Column("flag", pa.bool_(), "later still", False),
    ),
)


@each_row(
    ("schema", "later"),
    [
        (GROWN.schema, []),
        (_older("old", "text"), ["flag"]),
        (_older("old"), ["text", "flag"]),
        (_older("text", "flag"), None),
        (_older("text", "old", "flag"), None),
        (pa.schema([]), None),
        (GROWN.schema.append(pa.field("strange", pa.int64())), None),
        (pa.schema([pa.field("old", pa.int32())]), None),
    ],
)
def test_files_from_before_a_column_was_added(schema: pa.Schema, later: list[str] | None) -> None:
    found = GROWN.later_columns(schema)
    assert (None if found is None else [column.name for column in found]) == later


def test_columns_that_came_later_have_a_default() -> None:
    """Bundles of the first release are read with them."""
    later = {
        f"{t.name}.{c.name}" for t in TABLES.values() for c in t.columns if c.default is not None
    }
    assert later == {"kernels.cubin", "kernels.placed_by", "markers.nested", "steps.watched"}

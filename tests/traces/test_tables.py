"""Every table says what it holds, and its files keep their columns."""

from __future__ import annotations

import hashlib

from spark_prof.traces.chunks import COUNTER_DTYPE, ENGINE_DTYPE, STEP_DTYPE
from spark_prof.traces.tables import TABLES

SCHEMA = "cf8a8777915810d0"
"""Of names, order and types of all columns. Who changes them changes `bundle.SCHEMA` too, but for
columns that are added with a default."""


def test_the_schema_of_bundles() -> None:
    text = "\n".join(f"{table.name}\n{table.schema}" for table in TABLES.values())
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == SCHEMA, text


def test_the_recorded_arrays_fill_their_tables() -> None:
    steps = {column.name for column in TABLES["steps"].columns}
    assert set(STEP_DTYPE.names or ()) - {"thread"} == steps - {"piece"}
    assert list(ENGINE_DTYPE.names or ()) == TABLES["engine"].schema.names
    assert list(COUNTER_DTYPE.names or ()) == TABLES["counters"].schema.names


def test_columns_that_came_later_have_a_default() -> None:
    """Bundles of the first release are read with them."""
    later = {
        f"{t.name}.{c.name}" for t in TABLES.values() for c in t.columns if c.default is not None
    }
    assert later == {"kernels.cubin", "kernels.placed_by", "markers.nested", "steps.watched"}

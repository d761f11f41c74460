"""A column that is read a few rows at a time, beside what pyarrow and pandas make of it."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from spark_prof.traces.large_columns import LargeColumn, only_value
from tests.rows import each_row

NAMES = pa.dictionary(pa.int32(), pa.string())


def read(kind: pa.DataType, parts: list[list[Any]]) -> pd.Series:
    column = LargeColumn(kind, sum(map(len, parts)))
    for part in parts:
        column.add(pa.array(part, kind))
    return pd.Series(column.filled())


def wanted(kind: pa.DataType, parts: list[list[Any]]) -> pd.Series:
    chunks = pa.chunked_array([pa.array(part, kind) for part in parts], kind)
    return chunks.unify_dictionaries().to_pandas()


@each_row("names", [1, 3, 127, 128, 200, 40_000])
def test_names_of_many_parts(names: int) -> None:
    chosen = random.Random(names)
    texts = [f"kernel {number}" for number in range(names)]
    few = [chosen.choices(texts, k=chosen.randrange(1, 500)) for _ in range(4)]
    parts = [texts[:1] * 5, *few[:2], texts, *few[2:]]
    pd.testing.assert_series_equal(read(NAMES, parts), wanted(NAMES, parts))


@pytest.mark.parametrize("kind", [pa.int32(), pa.int64(), pa.float64()])
def test_numbers_behind_zeros(kind: pa.DataType) -> None:
    for parts in ([[0, 0], [0]], [[0, 0], [0, 7], [0]], [[5], [0, 0]]):
        pd.testing.assert_series_equal(read(kind, parts), wanted(kind, parts))


@each_row(
    ("values", "kind", "said"),
    [
        ([7] * 9, pa.int64(), 7), ([0] * 9, pa.int32(), 0), ([0] * 8 + [1], pa.int32(), None),
        ([""] * 9, NAMES, ""), (["a"] * 9, NAMES, None), ([None] + [3] * 8, pa.int32(), None),
        ([2.0] * 9, pa.float64(), None),
    ],
)  # fmt: skip
def test_what_all_rows_have(
    values: list[Any], kind: pa.DataType, said: int | str | None, tmp_path: Path
) -> None:
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.table({"first": range(9), "other": pa.array(values, kind)}), path,
                   row_group_size=4)  # fmt: skip
    assert only_value(pq.ParquetFile(path), "other") == said
    if said is not None:
        found = pd.Series(LargeColumn(kind, 9).of_one(said))
        pd.testing.assert_series_equal(found, wanted(kind, [values]))

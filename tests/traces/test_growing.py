"""Columns that are filled while a trace is read."""

from __future__ import annotations

import numpy as np

from spark_prof.traces.readers.cupti_parts import Columns, Names
from tests.rows import each_row


@each_row("expected", [0, 1, 7, 100])
def test_columns_keep_what_was_written(expected: int) -> None:
    columns = Columns({"a": "i8", "b": "i1"}, expected)
    for begin in range(0, 30, 3):
        into = columns.add(3)
        into["a"][:] = np.arange(begin, begin + 3)
    found = columns.arrays()
    assert found["a"].tolist() == list(range(30))
    assert found["b"].tolist() == [0] * 30
    assert found["b"].dtype == np.int8


def test_names_are_numbered_as_they_come() -> None:
    names = Names(lambda value: "odd" if value % 2 else "even")
    assert [names.code(value) for value in (3, 4, 5, 8, 3)] == [0, 1, 0, 1, 0]
    assert names.number("other") == 2
    assert names.column(np.array([2, 0], np.int32)).tolist() == ["other", "odd"]

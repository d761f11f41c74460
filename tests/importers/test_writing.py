"""Frames are written behind the reader, in order, and a failure reaches it."""

import pandas as pd
import pytest

from spark_prof.importers.process import BehindTables
from spark_prof.traces.bundle import table_file
from spark_prof.traces.table_files import TableFiles


def calls(first, count):
    starts = range(first, first + count)
    return pd.DataFrame({"name": "n", "start_ns": starts, "end_ns": starts})


def test_frames_are_written_in_order(tmp_path):
    with TableFiles(tmp_path) as tables, BehindTables(tables) as behind:
        for first in range(0, 300, 10):
            behind.add("overhead", 0, calls(first, 10))
        assert behind.rows() == {table_file("overhead", 0): 300}
    found = pd.read_parquet(tmp_path / table_file("overhead", 0), partitioning=None)
    assert found["start_ns"].tolist() == list(range(300))


def write(folder, *tables, error=None):
    with TableFiles(folder) as files, BehindTables(files) as behind:
        for table in tables:
            behind.add(table, 0, calls(0, 1))
        if error:
            raise error


def test_what_cannot_be_written_is_raised_and_nothing_is_left(tmp_path):
    with pytest.raises(KeyError):
        write(tmp_path, "overhead", "no such table")
    assert list(tmp_path.iterdir()) == []


def test_a_reader_that_fails_leaves_nothing(tmp_path):
    with pytest.raises(OSError, match="gone"):
        write(tmp_path, "overhead", error=OSError("gone"))
    assert list(tmp_path.iterdir()) == []

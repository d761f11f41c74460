"""A test of many rows: every row runs, every failure is reported, and rows leave nothing behind."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.rows import each_row


def test_every_failing_row_is_reported_with_its_values() -> None:
    seen = []

    @each_row("a", [1, 2])
    @each_row("b, c", [(1, 0), pytest.param(2, 0, id="the second"), (3, 3)])
    def checks(a: int, b: int, c: int) -> None:
        seen.append((a, b))
        assert c or a == b, "unequal"

    with pytest.raises(ExceptionGroup, match="2 of 2 rows fail") as caught:
        checks()
    assert seen == [(1, 1), (1, 2), (1, 3), (2, 1), (2, 2), (2, 3)]
    first, second = caught.value.exceptions
    assert first.__notes__ == ["row the second: {'b': 2, 'c': 0}", "row 0: {'a': 1}"]
    assert second.__notes__ == ["row 0: {'b': 1, 'c': 0}", "row 1: {'a': 2}"]


@each_row("row", [1, 2])
def test_each_row_has_its_own_folder_and_environment(
    row: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "SPARK_PROF_ROW" not in os.environ
    monkeypatch.setenv("SPARK_PROF_ROW", str(row))
    assert not list(tmp_path.iterdir())
    (tmp_path / "file").touch()

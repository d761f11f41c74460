"""The notebook's page: its cells run, one after the other, and every figure is named."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from spark_prof.dashboards.outline import FIGURES
from tests.docs.pages import ROOT, tables

PAGE = ROOT / "docs" / "notebook.md"
CELLS = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.M | re.S)


def test_cells_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tests").symlink_to(ROOT / "tests")
    names: dict[str, Any] = {}
    for cell in CELLS:
        exec(compile(cell, PAGE.name, "exec"), names)
    assert "gpt-oss-20b on an H100" in Path("components.html").read_text(encoding="utf-8")
    assert Path("report.html").stat().st_size < 6_000_000
    assert max(names["by_component"].values()) > 0
    assert names["floor"] > 0
    assert 0 < names["longest"] < 1e9


def test_every_figure_is_named() -> None:
    assert [row[0].strip("`") for row in tables(PAGE, "Figures")[0]] == list(FIGURES)

"""Own kernels: the tutorial's commands and example run, the page's tables are the code's."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest

pytest.importorskip("torch")

from spark_prof.kernels.candidate import KernelCandidate
from spark_prof.kernels.check.runner import check as check_candidate
from spark_prof.swaps.builder_loading import GROUP, load_builder
from spark_prof.swaps.layers import Replacement
from spark_prof.swaps.swap_settings import SLOTS
from tests.command_line import ran
from tests.docs.pages import ROOT, commands, tables

PAGE = ROOT / "docs" / "own-kernels.md"
TUTORIAL = ROOT / "docs" / "tutorial-kernel.md"
TEXT = PAGE.read_text(encoding="utf-8")
COMMANDS = list(commands(TUTORIAL))


def test_the_path_of_a_norm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Template, check and apply; the comparison between them is tests/engine/test_ab.py's."""
    monkeypatch.chdir(tmp_path)
    first = COMMANDS.index(["kernels", "template", "norm", "-o", "my_norm.py"])
    template, check, compare, apply = COMMANDS[first : first + 4]
    assert ran(*template)[0] == 0
    code, out, _ = ran(*check)
    assert code == 0
    assert "0 failed; 0 skipped" in out
    assert compare[:3] == apply[:1] + apply[2:]
    code, out, _ = ran(*apply)
    assert code == 0
    assert f"SPARK_PROF_SWAPS=norm={tmp_path / 'my_norm.py'}:build" in out


def test_the_example_passes_the_check(tmp_path: Path) -> None:
    text = TUTORIAL.read_text(encoding="utf-8")
    [example] = re.findall(r"^```python\n(.*?)^```$", text, re.M | re.S)
    path = tmp_path / "example.py"
    path.write_text(example, encoding="utf-8")
    builder = load_builder(f"{path}:build")
    verdicts = list(check_candidate(KernelCandidate("example", "norm", builder), "cpu"))
    assert {verdict.status for verdict in verdicts} == {"passed"}


def test_the_tables_are_those_of_the_code() -> None:
    [slots] = tables(PAGE, "Template")
    assert {slot.strip() for row in slots for slot in row[0].split(",")} == set(SLOTS)
    assert [field.name for field in fields(Replacement) if f"`{field.name}`" not in TEXT] == []
    assert f'[project.entry-points."{GROUP}"]' in TEXT


def test_what_the_page_allows_is_what_the_check_allows() -> None:
    from spark_prof.kernels.check.verdict import CHANGED

    assert f"may be {CHANGED:.0%} off".replace("%", " %") in TEXT

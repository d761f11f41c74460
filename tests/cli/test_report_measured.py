"""`report --measured`: which ceilings a recording is held against."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from spark_prof.cli import main as cli
from spark_prof.traces.measured import Measured, Measurement, keep_measured
from tests.analyzers.roofline.recorded import GPU, bundle

SLOW = Measured(
    str(GPU["name"]), "2026-11-21T10:00:00+00:00",
    (Measurement("read", 1.5e12, "B/s", 1.4e12, 1.6e12, 20, "a reader"),),
)  # fmt: skip


def run(monkeypatch: pytest.MonkeyPatch, *words: str | Path) -> int:
    monkeypatch.setattr(sys, "argv", ["spark-prof", "report", *map(str, words)])
    return int(cli.main() or 0)


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state" / "spark-prof" / "ceilings"


def reached(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(capsys.readouterr().out)["roofline"]["ceilings"]["reached"]
    return found


def test_what_this_machine_kept_is_used_without_being_named(
    tmp_path: Path, state: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = bundle(tmp_path / "b").path
    assert run(monkeypatch, folder, "--format", "json") == 0
    assert reached(capsys)["value"] == 3.03e12
    keep_measured(SLOW, state)
    assert run(monkeypatch, folder, "--format", "json") == 0
    found = reached(capsys)
    assert found["value"] == 1.5e12
    assert SLOW.taken in found["source"]


def test_a_named_file_goes_before_it(
    tmp_path: Path, state: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = bundle(tmp_path / "b").path
    named = keep_measured(SLOW, tmp_path / "elsewhere")
    assert run(monkeypatch, folder, "--format", "json", "--measured", named) == 0
    assert reached(capsys)["value"] == 1.5e12
    assert not state.exists()


@pytest.mark.parametrize("content", ["", "{}", '{"device": "NVIDIA GB10", "taken": "", '
                                     '"measurements": []}'])  # fmt: skip
def test_a_file_that_does_not_fit_is_one_line(
    content: str,
    tmp_path: Path,
    state: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = bundle(tmp_path / "b").path
    (tmp_path / "x.json").write_text(content)
    assert run(monkeypatch, folder, "--measured", tmp_path / "x.json") == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1
    assert "x.json" in said.err

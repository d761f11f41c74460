"""`spark-prof report` of what `spark-prof ab` wrote."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from spark_prof.ab.result import to_json
from spark_prof.cli import main as cli
from spark_prof.dashboards.ab_report import render_ab
from tests.dashboards.ab_sample import AB_SAMPLES, FASTER


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "result.json").write_bytes(to_json(FASTER))

    def command(*words: str) -> int:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", ["spark-prof", "report", *words])
        return cli.main()

    return command


@pytest.mark.parametrize("source", ["result.json", "."])
@pytest.mark.parametrize("kind", ["text", "md", "html", "json"])
def test_a_result_is_drawn(run, source: str, kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(source, "--format", kind) == 0
    assert capsys.readouterr().out.rstrip("\n") == render_ab(FASTER, kind).rstrip("\n")


def test_a_result_is_written(run, tmp_path: Path) -> None:
    assert run("result.json", "-o", "page.html") == 0
    assert (tmp_path / "page.html").read_text() == render_ab(FASTER, "html")


@pytest.mark.parametrize("option", [("--rank", "0"), ("--bench", "x.json")])
def test_options_of_recordings_are_refused(
    run, option: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("result.json", *option) == 2
    assert "holds a result of spark-prof ab; --rank" in capsys.readouterr().err


def test_a_damaged_result_is_one_line(
    run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "result.json").write_bytes(to_json(AB_SAMPLES["ab_moved"])[:5000])
    assert run("result.json") == 2
    [line] = capsys.readouterr().err.splitlines()
    assert "result.json is no result of spark-prof ab" in line

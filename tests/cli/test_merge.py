"""`spark-prof merge`: a whole bundle or one line and exit code 2, and nothing half-written."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from spark_prof.cli import main as cli
from spark_prof.traces.bundle import Bundle
from tests.analyzers.ranks.bundles import bundle, parallel
from tests.analyzers.ranks.play import Play

Run = Callable[..., tuple[int, str]]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs `merge` in a folder with two parts `a` and `b` of a run, and another run `c`."""
    play = Play(ranks=3, offset_ns={1: 50_000_000})
    for rank, name in enumerate("abc"):
        facts = {rank: {"boot": name, "run": "other" if name == "c" else "r"}}
        bundle(tmp_path / name, play, facts, parallel=parallel(tensor=2))
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").touch()
    monkeypatch.chdir(tmp_path)

    def runner(*words: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["spark-prof", "merge", *words])
        code = cli.main()
        return code, capsys.readouterr().err

    return runner


def test_two_hosts_become_one_bundle(run: Run, tmp_path: Path) -> None:
    code, said = run("b", "a", "-o", "deep/whole")
    assert code == 0
    assert "ranks 0, 1 in deep/whole" in said
    assert "rank1: clock +50,0" in said
    assert "times moved" in said
    assert Bundle(tmp_path / "deep" / "whole").ranks == (0, 1)
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["whole"]


def test_an_empty_folder_is_taken(run: Run, tmp_path: Path) -> None:
    (tmp_path / "whole").mkdir()
    assert run("a", "b", "-o", "whole")[0] == 0


@pytest.mark.parametrize(
    "words",
    ["a -o whole", "a b", "a b -o full", "a b -o a", "a a -o whole", "a c -o whole",
     "a nosuch -o whole", "a full -o whole", "-o whole", "a b -o full/x/whole"],
)  # fmt: skip
def test_bad_input_is_one_line(run: Run, tmp_path: Path, words: str) -> None:
    before = sorted(path.name for path in tmp_path.rglob("*"))
    code, said = run(*words.split())
    assert code == 2
    assert said.startswith("spark-prof: ")
    assert said.count("\n") == 1
    assert sorted(path.name for path in tmp_path.rglob("*")) == before

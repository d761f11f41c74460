"""`spark-prof merge`: a whole bundle or one line and exit code 2, and nothing half-written."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_prof.traces.bundle import Bundle
from tests.analyzers.ranks.bundles import bundle, parallel
from tests.analyzers.ranks.play import Play
from tests.cli.conftest import Refuses, Run

COMMAND = "merge"


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path) -> None:
    """Two parts `a` and `b` of a run, another run `c`, and a folder that is full."""
    play = Play(ranks=3, offset_ns={1: 50_000_000})
    for rank, name in enumerate("abc"):
        facts = {rank: {"boot": name, "run": "other" if name == "c" else "r"}}
        bundle(tmp_path / name, play, facts, parallel=parallel(tensor=2))
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").touch()


def test_two_hosts_become_one_bundle(run: Run, tmp_path: Path) -> None:
    code, _, said = run("b", "a", "-o", "deep/whole")
    assert code == 0
    assert "ranks 0, 1 in deep/whole" in said
    assert "rank1: clock +50,0" in said
    assert "times moved" in said
    assert Bundle(tmp_path / "deep" / "whole").ranks == (0, 1)
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["whole"]


def test_bad_input_is_one_line(refuses: Refuses) -> None:
    for words in (
        "a -o whole", "a b", "a b -o full", "a b -o a", "a a -o whole", "a c -o whole",
        "a nosuch -o whole", "a full -o whole", "-o whole", "a b -o full/x/whole",
    ):  # fmt: skip
        refuses(words)

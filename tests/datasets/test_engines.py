"""Both engines give the same for every item, in order, and a failure stays with its item."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from spark_prof.datasets.engines import Executor, run_each
from spark_prof.errors import CommandError
from tests.datasets.pieces_of_work import node_of, process_of, report_dataset, some_fail
from tests.support import Recorded, eager_decode


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four recordings, one of two ranks, and two that are broken."""
    root = tmp_path_factory.mktemp("runs")
    for number in range(3):
        Recorded({0: [eager_decode()]}).assemble(root / f"run{number}")
    Recorded({0: [eager_decode()], 1: [eager_decode()]}).assemble(root / "deep" / "two-ranks")
    for name in ("damaged", "empty"):
        (root / name).mkdir()
        (root / name / "meta.json").write_text("{" if name == "damaged" else "{}")
    return root


@pytest.mark.parametrize(
    "engine", [Executor.LOCAL, pytest.param(Executor.RAY, marks=pytest.mark.slow)]
)
def test_a_failure_stays_with_its_item(engine: Executor, request: pytest.FixtureRequest) -> None:
    if engine is Executor.RAY:
        request.getfixturevalue("cluster")
    outcomes = run_each(some_fail, [0, 1, 2, 3, 4], engine)
    assert [outcome.value for outcome in outcomes] == [0, None, None, None, 16]
    assert outcomes[1].reason == "item 1 is damaged; record again"
    assert "unexpected ValueError: of two lines" in outcomes[2].reason
    assert "died" in outcomes[3].reason
    assert not any("\n" in outcome.reason for outcome in outcomes)


def test_one_item_needs_no_process() -> None:
    assert [o.value for o in run_each(process_of, [1], Executor.LOCAL)] == [os.getpid()]


@pytest.mark.slow
def test_work_runs_on_both_nodes(cluster: set[str]) -> None:
    assert len(cluster) == 2
    outcomes = run_each(node_of, range(8), Executor.RAY)
    assert {outcome.value for outcome in outcomes} == cluster


@pytest.mark.slow
def test_ray_reports_the_same_bytes(folder: Path, cluster: set[str]) -> None:
    local, ray = (report_dataset(folder, "json", engine) for engine in ("local", "ray"))
    assert local == ray
    assert "two-ranks" in local
    assert "damaged" in local


def test_without_ray_there_is_one_line(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "ray", None)
    with pytest.raises(CommandError, match=r"pip install 'ray>="):
        report_dataset(folder, "json", "ray")

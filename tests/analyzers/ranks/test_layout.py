"""How ranks are arranged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from spark_prof.analyzers.ranks.rank_teams import clock_name, layout_of
from spark_prof.traces.bundle import Bundle
from tests.analyzers.ranks.bundles import bundle, parallel
from tests.analyzers.ranks.play import Play
from tests.rows import each_row


def made(tmp_path: Path, ranks: int, facts: Any) -> Bundle:
    return bundle(tmp_path / "b", Play(ranks=ranks, steps=1), dict.fromkeys(range(ranks), facts))


def test_tensor_parallel_ranks_are_innermost(tmp_path: Path) -> None:
    facts = {"parallel": parallel(tensor=2, pipeline=2, data=2)}
    layout = layout_of(made(tmp_path, 8, facts))
    assert [(t.replica, t.stage, t.ranks) for t in layout.teams] == [
        (0, 0, (0, 1)), (0, 1, (2, 3)), (1, 0, (4, 5)), (1, 1, (6, 7)),
    ]  # fmt: skip
    assert layout.output_ranks == {2, 6}
    assert layout.missing == ()
    assert layout.crosses_replicas


def test_ranks_that_are_not_there(tmp_path: Path) -> None:
    layout = layout_of(made(tmp_path, 3, {"parallel": parallel(tensor=4)}))
    assert layout.missing == (3,)
    assert [(t.ranks, t.size) for t in layout.teams] == [((0, 1, 2), 4)]


@each_row(
    "facts",
    [{}, {"parallel": None}, {"parallel": []}, {"parallel": {"tensor": "2"}},
     {"parallel": parallel(tensor=0)}, {"parallel": parallel(tensor=1 << 40)},
     {"parallel": parallel()}],
)  # fmt: skip
def test_facts_that_tell_nothing_make_one_team(tmp_path: Path, facts: dict[str, Any]) -> None:
    layout = layout_of(made(tmp_path, 2, facts))
    assert [team.ranks for team in layout.teams] == [(0, 1)]
    assert layout.missing == ()


def test_containers_of_one_host_share_its_clock() -> None:
    assert clock_name({"host": "c1", "boot": "x"}) == clock_name({"host": "c2", "boot": "x"})
    assert clock_name({"host": "a"}) != clock_name({"host": "b"})

"""Wait, transfer and the slowest rank."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from spark_prof.analyzers.ranks.align_ranks import match_collectives
from spark_prof.analyzers.ranks.clock_offsets import Offset
from spark_prof.analyzers.ranks.collective_waits import aligned, slowest_of_steps, waits_of
from tests.analyzers.ranks.play import Play
from tests.docs.pages import ROOT, tables
from tests.rows import each_row


def one_call(*times: tuple[int, int]) -> pd.DataFrame:
    rows = [(0, 0, "all_reduce", rank, *pair) for rank, pair in enumerate(times)]
    return pd.DataFrame(rows, columns=["call", "turn", "kind", "rank", "start_ns", "end_ns"])


def test_the_worked_example_of_the_page_is_right() -> None:
    page: Path = ROOT / "docs" / "ranks.md"
    [documented] = tables(page, "A worked example")
    rows = [[int(cell) for cell in row] for row in documented]
    calls = one_call(*((1000 * row[1], 1000 * row[2]) for row in rows))
    found = waits_of(calls, 0).calls
    assert (found["wait_ns"] // 1000).tolist() == [row[3] for row in rows]
    assert (found["transfer_ns"] // 1000).tolist() == [row[4] for row in rows]
    [step] = slowest_of_steps(found, 0).itertuples()
    assert (step.slowest, step.held_up_ns) == (1, 25_000)


def test_wait_and_transfer_are_the_whole_call() -> None:
    play = Play(slow={3: 2})
    calls = match_collectives(play.numbered(), play.calls()).calls
    found = waits_of(calls, 0)
    assert found.contradictory == 0
    assert len(found.calls) == len(calls)
    whole = (calls["end_ns"] - calls["start_ns"]).tolist()
    assert (found.calls["wait_ns"] + found.calls["transfer_ns"]).tolist() == whole
    assert (found.calls["wait_ns"] >= 0).all()
    assert found.calls["transfer_ns"].between(play.transfer_ns, 1.2 * play.transfer_ns + 1).all()


@each_row("seed", range(10))
def test_the_planted_slow_rank_is_named(seed: int) -> None:
    dice = np.random.default_rng(seed)
    slow = {step: int(dice.integers(4)) for step in range(40)}
    play = Play(seed=seed, slow=slow)
    calls = match_collectives(play.numbered(), play.calls()).calls
    assert slowest_of_steps(waits_of(calls, 0).calls, 1000)["slowest"].to_dict() == slow


@each_row("seed", range(5))
def test_the_slow_rank_is_named_across_clocks(seed: int) -> None:
    """With the offset taken off, and not with the raw times, which always blame one rank."""
    slow = {step: step % 4 for step in range(40)}
    play = Play(seed=seed, slow=slow, offset_ns={2: 900_000})
    calls = match_collectives(play.numbered(), play.calls()).calls
    offset = Offset(900_000.0, 0.0, 0, 0.0, 1, "collectives")
    found = waits_of(aligned(calls, {2: offset}), 0)
    assert found.contradictory == 0
    assert slowest_of_steps(found.calls, 1000)["slowest"].to_dict() == slow
    assert waits_of(calls, 0).contradictory == len(calls)


def test_nobody_is_named_below_the_clocks_uncertainty() -> None:
    calls = waits_of(one_call((0, 100), (30, 100)), 0).calls
    assert slowest_of_steps(calls, 20)["slowest"].tolist() == [1]
    assert slowest_of_steps(calls, 40)["slowest"].tolist() == [-1]
    assert slowest_of_steps(calls, 40)["held_up_ns"].tolist() == [0.0]


def test_a_rank_that_was_done_before_another_began_is_a_contradiction() -> None:
    found = waits_of(one_call((0, 10_000), (15_000, 30_000)), 0)
    assert found.contradictory == 2
    assert found.calls.empty
    assert slowest_of_steps(found.calls, 0).empty
    assert waits_of(one_call((0, 10_000), (15_000, 30_000)), 4_000).contradictory == 0

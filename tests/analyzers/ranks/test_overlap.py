"""Collectives matched by time, on played and on real runs."""

from __future__ import annotations

import numpy as np
import pandas as pd

from spark_prof.analyzers.ranks.align_ranks import match_by_time, match_collectives
from tests.analyzers.ranks.play import Play
from tests.rows import each_row


@each_row("seed", range(10))
def test_it_finds_what_keys_find(seed: int) -> None:
    dice = np.random.default_rng(seed)
    play = Play(seed=seed, slow={step: int(dice.integers(4)) for step in range(40)})
    by_key = match_collectives(play.numbered(), play.calls()).calls
    by_time = match_by_time(play.numbered()[0], play.calls())
    assert by_time.unmatched == 0
    order = ["turn", "rank", "start_ns"]
    pd.testing.assert_frame_equal(
        by_time.calls.sort_values(order, ignore_index=True).drop(columns="call"),
        by_key.sort_values(order, ignore_index=True).drop(columns="call"),
    )


@each_row("seed", range(10))
def test_what_is_lost_on_one_rank_is_not_made_up(seed: int) -> None:
    dice = np.random.default_rng(seed)
    play = Play(seed=seed, ranks=3)
    calls = {rank: rows.assign(true=rows.index) for rank, rows in play.calls().items()}
    true = {rank: dict(zip(rows["end_ns"], rows["true"], strict=True)) for rank, rows in
            calls.items()}  # fmt: skip
    kept = {rank: rows[dice.random(len(rows)) > 0.1] for rank, rows in calls.items()}
    found = match_by_time(play.numbered()[0], kept)
    assert found.unmatched > 0
    whole = [set.intersection(*(set(rows["true"]) for rows in kept.values()))]
    assert found.calls["call"].nunique() == len(whole[0])
    for _, call in found.calls.groupby("call"):
        assert len({true[row.rank][row.end_ns] for row in call.itertuples()}) == 1


def test_another_kind_is_another_collective() -> None:
    play = Play(ranks=2, steps=3)
    calls = play.calls()
    calls[1] = calls[1].replace({"kind": {"all_gather": "reduce_scatter"}})
    found = match_by_time(play.numbered()[0], calls)
    assert set(found.calls["kind"]) == {"all_reduce"}
    assert found.unmatched == 2 * 3


def test_one_call_and_none() -> None:
    play = Play(ranks=2, steps=1)
    calls = {rank: rows.iloc[:1] for rank, rows in play.calls().items()}
    assert len(match_by_time(play.numbered()[0], calls).calls) == 2
    calls[1] = calls[1].iloc[:0]
    assert match_by_time(play.numbered()[0], calls).calls.empty

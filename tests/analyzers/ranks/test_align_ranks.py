"""The same step on several ranks.

Collectives across ranks, on played runs and on a real one with eight ranks.

Collectives matched by time, on played and on real runs.
"""

from __future__ import annotations

import gzip
import random
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from spark_prof.analyzers.ranks.align_ranks import (
    calls_among,
    join_steps,
    match_by_time,
    match_collectives,
)
from spark_prof.analyzers.ranks.rank_clocks import offset_of_collectives
from spark_prof.analyzers.ranks.rank_summary import slowest_of_steps, waits_of
from spark_prof.traces.readers.kineto import read_kineto
from tests.analyzers.ranks.play import Play
from tests.rows import each_row


def steps(keys: Sequence[int], first: int = 0) -> pd.DataFrame:
    return pd.DataFrame({"step": range(first, first + len(keys)), "key": keys}).astype("int64")


@each_row(
    ("ranks", "wanted"),
    [
        pytest.param([steps([5, 6, 7]), steps([6, 7], first=40)], [[1, 40], [2, 41]],
                     id="numbers may differ"),
        pytest.param([steps([5, 6, 7]), steps([5, 7]), steps([5, 6, 7])], [[0, 0, 0], [2, 1, 2]],
                     id="a step that one rank lacks is left out"),
        pytest.param([steps([1, 9, 2, 9, 3])] * 2, [[i, i] for i in range(5)],
                     id="a key that comes back needs its neighbours"),
        pytest.param([steps([1, 9, 9, 3]), steps([1, 9, 3])], [[0, 0], [3, 2]],
                     id="one 9 too few: it cannot be told which of the two it is"),
        pytest.param([steps([1, 9, 2, 9, 3]), steps([1, 2, 9, 3])],
                     [[0, 0], [2, 1], [3, 2], [4, 3]], id="except by what lies around it"),
        pytest.param([steps([1, 2, 3, 4]), steps([4, 1, 2, 3])], [[0, 1], [1, 2], [2, 3]],
                     id="order is kept"),
        *(([steps([1, 2] * n), steps(other)], []) for n, other in ((1, [3]), (1, []), (0, []))),
    ],
)  # fmt: skip
def test_the_same_steps(ranks: list[pd.DataFrame], wanted: list[list[int]]) -> None:
    assert join_steps(dict(enumerate(ranks))).to_numpy().tolist() == wanted


@each_row("seed", range(20))
def test_what_is_joined_is_the_same_step(seed: int) -> None:
    """Of steps with known identity, some lost on each rank, none is joined with another one."""
    dice = random.Random(seed)
    run = [(number, dice.randrange(30)) for number in range(60)]
    kept = [[step for step in run if dice.random() > 0.1] for _ in range(3)]
    table = join_steps({r: steps([key for _, key in k]) for r, k in enumerate(kept)})
    for row in table.itertuples(index=False):
        keys = {kept[rank][place][1] for rank, place in enumerate(row)}
        assert len(keys) == 1
    assert all(table[rank].is_monotonic_increasing for rank in table)


@each_row("seed", range(20))
def test_every_step_with_a_key_of_its_own_is_found(seed: int) -> None:
    dice = random.Random(seed)
    run = dice.sample(range(10_000), 50)
    kept = [[key for key in run if dice.random() > 0.2] for _ in range(3)]
    table = join_steps({rank: steps(keys) for rank, keys in enumerate(kept)})
    common = [key for key in run if all(key in keys for keys in kept)]
    assert [kept[0][place] for place in table[0]] == common


EIGHT_RANKS = Path(__file__).parents[4] / "shared" / "traces" / "kineto" / "dlrm_v100_8rank"


def test_a_kind_with_different_numbers_in_a_step_is_left_out_there() -> None:
    play = Play(ranks=2, steps=4)
    calls = play.calls()
    calls[1] = calls[1].drop(index=3)  # the first collective of step 1
    found = match_collectives(play.numbered(), calls)
    assert found.unequal_steps == 1
    assert found.unmatched == 2 * 2 - 1  # two all_reduce on one rank, one on the other
    assert set(found.calls["turn"]) == {0, 1, 2, 3}
    assert set(found.calls.loc[found.calls["turn"] == 1, "kind"]) == {"all_gather"}


@each_row("kind", ["broadcast", "unknown", "reduce", "send_recv"])
def test_kinds_whose_participants_may_leave_early_are_not_matched(kind: str) -> None:
    play = Play(ranks=2, steps=4)
    calls = {rank: rows.replace({"kind": {"all_gather": kind}}) for rank, rows in
             play.calls().items()}  # fmt: skip
    found = match_collectives(play.numbered(), calls, point_to_point=True)
    assert set(found.calls["kind"]) == {"all_reduce"}
    assert found.unmatched == 2 * play.steps


def test_no_step_and_no_collective() -> None:
    play = Play(ranks=2)
    steps = {rank: rows.iloc[:0] for rank, rows in play.numbered().items()}
    assert match_collectives(steps, play.calls()).calls.empty
    calls = {rank: rows.iloc[:0] for rank, rows in play.calls().items()}
    assert match_collectives(play.numbered(), calls).calls.empty


@pytest.fixture(scope="module")
def real() -> pd.DataFrame:
    """The calls of eight ranks on eight V100 of one host, whose timestamps are whole us."""
    if not EIGHT_RANKS.is_dir():
        pytest.skip(f"{EIGHT_RANKS} is not there")
    steps, calls = {}, {}
    for rank, path in enumerate(sorted(EIGHT_RANKS.glob("worker*.json.gz"))):
        steps[rank] = pd.DataFrame({"step": [12], "key": [1]})
        calls[rank] = calls_among(_kernels(path))
    found = match_collectives(steps, calls)
    assert found.unmatched == 0
    return found.calls


def _kernels(path: Path) -> pd.DataFrame:
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        file.write(gzip.decompress(path.read_bytes()))
        file.flush()
        gpu = read_kineto(Path(file.name)).gpu
    return gpu.assign(part=0, step=12).astype({"name": "category"})


def test_eight_real_ranks(real: pd.DataFrame) -> None:
    assert real["call"].nunique() == 8
    assert len(real) == 64
    found, contradictory = waits_of(real, 0)
    assert contradictory == 0
    transfers = found.groupby("call")["transfer_ns"]
    # Waits differ by milliseconds; what is left of each call is the same on all eight.
    assert (transfers.max() - transfers.min()).max() <= 10_000
    assert found["wait_ns"].max() > 7_000_000
    assert [step.slowest for step in slowest_of_steps(found, 2_000).itertuples()] == [7]
    table = real.set_index(["call", "rank"]).unstack()
    for rank in range(1, 8):
        columns = [table[n][r] for r in (0, rank) for n in ("start_ns", "end_ns")]
        offset = offset_of_collectives(*(column.to_numpy(np.int64) for column in columns))
        assert offset is not None
        assert abs(offset.ns) <= 2_000 < offset.uncertainty_ns


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


def test_one_call_and_none() -> None:
    play = Play(ranks=2, steps=1)
    calls = {rank: rows.iloc[:1] for rank, rows in play.calls().items()}
    assert len(match_by_time(play.numbered()[0], calls).calls) == 2
    calls[1] = calls[1].iloc[:0]
    assert match_by_time(play.numbered()[0], calls).calls.empty

"""Collectives across ranks, on played runs and on a real one with eight ranks."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from spark_prof.analyzers.ranks.align_ranks import match_collectives
from spark_prof.analyzers.ranks.clock_offsets import offset_of_collectives
from spark_prof.analyzers.ranks.collective_calls import calls_among
from spark_prof.analyzers.ranks.collective_waits import slowest_of_steps, waits_of
from spark_prof.traces.readers.kineto import read_kineto
from tests.analyzers.ranks.play import KINDS, Play
from tests.rows import each_row

EIGHT_RANKS = Path(__file__).parents[4] / "shared" / "traces" / "kineto" / "dlrm_v100_8rank"


def test_every_collective_is_matched() -> None:
    play = Play()
    found = match_collectives(play.numbered(), play.calls())
    assert found.calls["call"].nunique() == play.steps * len(KINDS)
    assert (found.calls.groupby("call").size() == play.ranks).all()
    assert (found.unequal_steps, found.unmatched) == (0, 0)


def test_steps_are_matched_by_key() -> None:
    play = Play(ranks=2)
    steps, calls = play.numbered(), play.calls()
    steps[1] = steps[1].iloc[5:].assign(step=steps[1]["step"].iloc[5:] - 5)
    late = calls[1][calls[1]["step"] >= 5]
    calls[1] = late.assign(step=late["step"] - 5)
    found = match_collectives(steps, calls)
    assert found.steps.to_numpy().tolist() == [[n + 5, n] for n in range(play.steps - 5)]
    assert waits_of(found.calls, 0).contradictory == 0


def test_a_step_with_different_numbers_is_left_out() -> None:
    play = Play(ranks=2, steps=4)
    calls = play.calls()
    calls[1] = calls[1].drop(index=3)  # the first collective of step 1
    found = match_collectives(play.numbered(), calls)
    assert found.unequal_steps == 1
    assert found.unmatched == 2 * len(KINDS) - 1
    assert set(found.calls["turn"]) == {0, 2, 3}


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
    import tempfile

    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        file.write(gzip.decompress(path.read_bytes()))
        file.flush()
        gpu = read_kineto(Path(file.name)).gpu
    return gpu.assign(part=0, step=12).astype({"name": "category"})


def test_eight_real_ranks_match(real: pd.DataFrame) -> None:
    assert real["call"].nunique() == 8
    assert len(real) == 64
    found = waits_of(real, 0)
    assert found.contradictory == 0
    transfers = found.calls.groupby("call")["transfer_ns"]
    # Waits differ by milliseconds; what is left of each call is the same on all eight.
    assert (transfers.max() - transfers.min()).max() <= 10_000
    assert found.calls["wait_ns"].max() > 7_000_000


def test_eight_real_ranks_share_a_clock(real: pd.DataFrame) -> None:
    table = real.set_index(["call", "rank"]).unstack()
    for rank in range(1, 8):
        columns = [table[n][r] for r in (0, rank) for n in ("start_ns", "end_ns")]
        offset = offset_of_collectives(*(column.to_numpy(np.int64) for column in columns))
        assert offset is not None
        assert abs(offset.ns) <= 2_000 < offset.uncertainty_ns


def test_the_slowest_of_eight_real_ranks(real: pd.DataFrame) -> None:
    [step] = slowest_of_steps(waits_of(real, 0).calls, 2_000).itertuples()
    assert step.slowest == 7

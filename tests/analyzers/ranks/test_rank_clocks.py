"""Planted offsets are found again within the uncertainty that is stated.

How ranks are arranged.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from spark_prof.analyzers.rank_layout import clock_name, layout_of, parallel_of
from spark_prof.analyzers.ranks.align_ranks import match_collectives
from spark_prof.analyzers.ranks.rank_clocks import Offset, offset_of_collectives, offset_of_steps
from spark_prof.traces.bundle import Bundle
from tests.analyzers.ranks.bundles import bundle, parallel
from tests.analyzers.ranks.play import Play
from tests.rows import each_row

OFFSETS = [0, 1, -7_000, 250_000, -3_000_000_000, 86_400_000_000_000]


def found_offset(play: Play, rank: int = 1) -> Offset | None:
    calls = match_collectives(play.numbered(), play.calls()).calls
    sides = [calls[calls["rank"] == r].set_index("call") for r in (0, rank)]
    return offset_of_collectives(
        *(side[name].to_numpy(np.int64) for side in sides for name in ("start_ns", "end_ns"))
    )


def largest_error(play: Play, offset: Offset, rank: int = 1) -> float:
    """Over all times of the recording."""
    true = play.true.loc[play.true["rank"] == rank, "end_ns"].reset_index(drop=True)
    own = play.calls()[rank]["end_ns"].to_numpy(np.int64)
    errors = offset.at(own) - play.clock_error(rank, true).to_numpy()
    return float(np.abs(errors).max())


@each_row("planted", OFFSETS)
@each_row("seed", range(2))
def test_a_planted_offset_is_found(planted: int, seed: int) -> None:
    play = Play(seed=seed, offset_ns={1: planted}, slow=dict.fromkeys(range(10), 1))
    offset = found_offset(play)
    assert offset is not None
    assert offset.events == 3 * play.steps
    assert largest_error(play, offset) <= offset.uncertainty_ns
    # Ends lie near together: it is better than the bounds, which waits widen.
    assert abs(offset.ns - planted) < play.transfer_ns


@each_row("drift", [2e-6, -30e-6, 100e-6])
@each_row("seed", range(2))
def test_a_planted_drift_is_followed(drift: float, seed: int) -> None:
    play = Play(steps=600, seed=seed, offset_ns={1: 5_000_000}, drift={1: drift},
                compute_ns=1_000_000)  # fmt: skip
    offset = found_offset(play)
    assert offset is not None
    assert largest_error(play, offset) <= offset.uncertainty_ns
    assert offset.drift == pytest.approx(drift, rel=0.1, abs=1e-6)


@each_row("seed", range(2))
def test_a_short_recording_with_a_drift_stays_within_its_uncertainty(seed: int) -> None:
    play = Play(steps=3, seed=seed, offset_ns={1: 400}, drift={1: 50e-6})
    offset = found_offset(play)
    assert offset is not None
    assert offset.drift == 0.0
    assert largest_error(play, offset) <= offset.uncertainty_ns


def test_what_gives_no_offset() -> None:
    """Nothing, a clock that was set, and a worker that began before it was scheduled."""
    none = np.empty(0, np.int64)
    assert offset_of_collectives(none, none, none, none) is None
    assert offset_of_steps(none, none, none, none) is None
    play = Play(steps=30)
    calls = match_collectives(play.numbered(), play.calls()).calls
    sides = [calls[calls["rank"] == r].set_index("call") for r in (0, 1)]
    columns = [s[n].to_numpy(np.int64).copy() for s in sides for n in ("start_ns", "end_ns")]
    for column in columns[2:]:
        column[::2] += 5_000_000
    assert offset_of_collectives(*columns) is None
    times = np.array([0, 1_000_000, 2_000_000])
    assert offset_of_steps(times, times + 10, times + 20, times + 900_000) is None


@each_row("planted", OFFSETS)
@each_row("seed", range(2))
def test_the_scheduler_bounds_a_worker_s_clock(planted: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    scheduled = 1_800_000_000_000_000_001 + np.arange(50) * 10_000_000
    start = scheduled + rng.integers(80_000, 900_000, 50)
    end = start + rng.integers(5_000_000, 6_000_000, 50)
    updated = end + rng.integers(100_000, 2_000_000, 50)
    offset = offset_of_steps(scheduled, start + planted, updated, end + planted)
    assert offset is not None
    assert offset.basis == "scheduler"
    assert abs(offset.ns - planted) <= offset.uncertainty_ns < 1_000_000


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
    layout = layout_of(made(tmp_path / "less", 3, {"parallel": parallel(tensor=4)}))
    assert layout.missing == (3,)
    assert [(t.ranks, t.size) for t in layout.teams] == [((0, 1, 2), 4)]


@each_row(
    "facts",
    [{}, {"parallel": None}, {"parallel": []}, {"parallel": {"tensor": "2"}},
     {"parallel": parallel(tensor=0)}, {"parallel": parallel(tensor=1 << 40)}],
)  # fmt: skip
def test_facts_that_tell_nothing_make_one_team(tmp_path: Path, facts: dict[str, Any]) -> None:
    layout = layout_of(made(tmp_path, 2, facts))
    assert [team.ranks for team in layout.teams] == [(0, 1)]
    assert layout.missing == ()


def test_replicas_that_know_nothing_of_each_other_are_replicas(tmp_path: Path) -> None:
    """Those of a dense model: each is an engine of its own and says that it is alone."""
    layout = layout_of(made(tmp_path, 4, {"parallel": parallel(tensor=2)}))
    assert [(t.replica, t.ranks) for t in layout.teams] == [(0, (0, 1)), (1, (2, 3))]
    assert (layout.tensor, layout.data, layout.missing) == (2, 2, ())
    assert not layout.crosses_replicas


def test_a_trace_tells_how_many_ranks_there_are(tmp_path: Path) -> None:
    bundle = made(tmp_path, 2, {"world_size": 8})
    assert layout_of(bundle).missing == (2, 3, 4, 5, 6, 7)
    assert layout_of(bundle).teams[0].size == 8
    told = parallel_of(bundle, 1)
    assert (told.rank, told.world, told.tensor) == (1, 8, None)


def test_containers_of_one_host_share_its_clock() -> None:
    assert clock_name({"host": "c1", "boot": "x"}) == clock_name({"host": "c2", "boot": "x"})
    assert clock_name({"host": "a"}) != clock_name({"host": "b"})

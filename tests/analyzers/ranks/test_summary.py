"""What the report says about the ranks of whole bundles."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from spark_prof.analyzers.ranks.rank_summary import collectives_of
from spark_prof.traces.assemble import assemble
from tests.analyzers.ranks import bundles
from tests.analyzers.ranks.bundles import bundle, parallel, write
from tests.analyzers.ranks.play import KINDS, Play
from tests.analyzers.reported import reported
from tests.dashboards.documents import whole
from tests.rows import each_row
from tests.support import ORIGIN, Recorded, eager_decode

FOUR = parallel(tensor=4)
BY_TURNS = {step: step % 4 for step in range(40)}
ONE_HOST = {rank: {"host": "a", "boot": "1"} for rank in range(4)}
TWO_HOSTS = ONE_HOST | {rank: {"host": "b", "boot": "2"} for rank in (2, 3)}


def test_one_host(tmp_path: Path) -> None:
    play = Play(slow=BY_TURNS)
    made = bundle(tmp_path / "b", play, ONE_HOST, parallel=FOUR)
    found, shares = collectives_of(made)
    assert (found.matched, found.unmatched) == (len(KINDS) * 40, 0)
    assert (found.steps, found.steps_left_out) == (40, 0)
    assert {step.step: step.slowest for step in found.slow_steps} == BY_TURNS
    assert [shares[rank]["slowest_steps"] for rank in range(4)] == [10] * 4
    assert all(clock.same_host and abs(clock.offset_us or 0) < 10 for clock in found.clocks)
    assert found.notes == ()
    total = play.true["end_ns"] - play.true["start_ns"]
    assert found.wait_us + found.transfer_us == pytest.approx(total.sum() / 4 / 1e3)
    assert sum(item.wait_us for item in found.items) == pytest.approx(found.wait_us)
    assert sum(item.calls for item in found.items) == found.matched
    assert sum(s["wait_us"] for s in shares.values()) / 4 == pytest.approx(found.wait_us)


def test_what_ran_before_a_collective(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundles, "GEMM", "rms_norm_kernel")
    facts = {rank: ONE_HOST[rank] for rank in (0, 1)}
    made = bundle(tmp_path / "b", Play(ranks=2, steps=4), facts, parallel=parallel(tensor=2))
    after = {(item.kind, item.after) for item in collectives_of(made)[0].items}
    assert after == {("all_reduce", "norm"), ("all_gather", "norm")}


def test_a_straggler_costs_less_than_a_step(tmp_path: Path) -> None:
    play = Play(slow=dict.fromkeys(range(40), 2))
    report = reported(bundle(tmp_path / "b", play, ONE_HOST, parallel=FOUR))
    assert report.collectives.matched == len(KINDS) * 40
    assert "all_reduce" in whole(report, "text")
    (finding,) = (f for f in report.findings if f.id == "straggler-rank")
    held = [step.held_up_us for step in report.collectives.slow_steps if step.slowest == 2]
    assert report.ranks[2].held_up_us == pytest.approx(np.mean(held))
    assert report.steps.decode_us is not None
    assert finding.ms_per_token is not None
    assert 0 < 1e3 * finding.ms_per_token < report.steps.decode_us.median


@each_row("offset", [-70_000_000, 3_600_000_000_000])
def test_two_hosts(tmp_path: Path, offset: int) -> None:
    play = Play(slow=BY_TURNS, offset_ns={2: offset, 3: offset})
    made = bundle(tmp_path / "b", play, TWO_HOSTS, parallel=FOUR)
    found, _ = collectives_of(made)
    assert [clock.same_host for clock in found.clocks] == [True, False, False]
    for clock in found.clocks[1:]:
        assert clock.basis == "collectives"
        assert clock.offset_us is not None
        assert clock.uncertainty_us is not None
        assert abs(clock.offset_us - offset / 1e3) <= clock.uncertainty_us < 50
    assert found.matched == len(KINDS) * 40
    assert {step.step: step.slowest for step in found.slow_steps} == BY_TURNS


def played_waits(play: Play, late: Any) -> list[float]:
    """How long each rank really waited, without those 40 us, in us."""
    start = play.true["start_ns"] - 40_000 * late
    last = start.groupby(play.true.index // play.ranks).transform("max")
    return [float((last - start)[play.true["rank"] == rank].sum()) / 1e3 for rank in (0, 1)]


def test_timestamps_that_contradict_each_other_are_said(tmp_path: Path) -> None:
    """One host, but every second step of a rank is stamped 40 us late, as if by another clock."""
    play = Play(ranks=2)
    late = play.true["rank"].eq(1) & play.true["step"].mod(2).eq(1)
    play.true.loc[late, ["start_ns", "end_ns"]] += 40_000
    facts = {rank: ONE_HOST[rank] for rank in (0, 1)}
    made = bundle(tmp_path / "b", play, facts, parallel=parallel(tensor=2))
    found, shares = collectives_of(made)
    [clock] = found.clocks
    assert (clock.offset_us, clock.basis) == (None, "none")
    assert clock.events == 40 * len(KINDS)
    assert any("timestamps disagree" in note for note in found.notes)
    # Of lengths no clock is asked: rank 1 waits as long as it does by the right clock.
    true = played_waits(play, late)
    assert found.matched == 40 * len(KINDS)
    assert [shares[rank]["wait_us"] for rank in (0, 1)] == pytest.approx(true, rel=0.1)


def test_stages_are_not_compared(tmp_path: Path) -> None:
    """Ranks 0 and 1 are the first stage; the second is three times as slow, and nobody's fault."""
    play = Play(slow=dict.fromkeys(range(40), 1))
    made = bundle(tmp_path / "b", play, ONE_HOST, parallel=parallel(tensor=2, pipeline=2))
    found, shares = collectives_of(made)
    assert {step.stage for step in found.slow_steps} == {0, 1}
    assert {s.slowest for s in found.slow_steps if s.stage == 0} == {1}
    assert {s.slowest for s in found.slow_steps if s.stage == 1} <= {2, 3, None}
    assert any("within a pipeline stage" in note for note in found.notes)
    assert shares[0]["slowest_steps"] == 0


def test_a_stage_on_another_host_takes_its_clock_from_the_scheduler(tmp_path: Path) -> None:
    offset = 5_000_000_000
    play = Play(ranks=2, offset_ns={1: offset})
    true = play.true[play.true["rank"] == 1].groupby("step")
    engines = {
        0: [
            {"key": int(play.keys[step]), "update_ns": ORIGIN + int(end) + 300_000,
             "schedule_ns": ORIGIN + int(start) - 400_000}
            for (step, start), end in zip(
                true["start_ns"].min().items(), true["end_ns"].max(), strict=True
            )
        ]
    }  # fmt: skip
    folder = write(
        tmp_path / "b", play, {0: {"boot": "1"}, 1: {"boot": "2"}}, engines,
        parallel=parallel(pipeline=2),
    )  # fmt: skip
    facts = folder / "pieces" / "engine0.facts.json"
    facts.write_text(facts.read_text()[:-1] + ', "boot": "1"}')
    found, _ = collectives_of(assemble(folder, state="complete"))
    [clock] = found.clocks
    assert clock.basis == "scheduler"
    assert clock.offset_us is not None
    assert clock.uncertainty_us is not None
    assert abs(clock.offset_us - offset / 1e3) <= clock.uncertainty_us < 1000


def test_a_stage_without_any_tie_is_not_compared(tmp_path: Path) -> None:
    facts = {0: {"boot": "1"}, 1: {"boot": "2"}}
    made = bundle(tmp_path / "b", Play(ranks=2), facts, parallel=parallel(pipeline=2))
    found, shares = collectives_of(made)
    assert (found.clocks[0].basis, found.clocks[0].offset_us) == ("none", None)
    assert all("wait_us" not in share for share in shares.values())
    assert any("Nothing ties the clock of rank 1" in note for note in found.notes)


def test_replicas_with_experts_are_matched_by_time(tmp_path: Path) -> None:
    play = Play(slow=BY_TURNS)
    pieces = write(tmp_path / "b", play, ONE_HOST, parallel=parallel(data=4)) / "pieces"
    for rank in range(1, 4):  # each replica has batches of its own, and was idle at first
        path = pieces / f"rank{rank}.00000.steps.npy"
        rows = np.load(path)[rank:]
        rows["key"] += 1000 * rank
        rows["step"] -= rank
        np.save(path, rows)
    found, _ = collectives_of(assemble(tmp_path / "b", state="complete"))
    assert found.matched == len(KINDS) * 40
    assert {step.step: step.slowest for step in found.slow_steps} == BY_TURNS
    assert any("by the time at which they ended" in note for note in found.notes)


@each_row(("facts", "sizes"), [(TWO_HOSTS, {"data": 4}), (ONE_HOST, {"tensor": 2, "data": 2})])
def test_replicas_on_two_hosts_or_of_several_ranks_are_left_alone(
    tmp_path: Path, facts: Any, sizes: dict[str, int]
) -> None:
    made = bundle(tmp_path / "b", Play(), facts, parallel=parallel(**sizes))
    found, shares = collectives_of(made)
    assert found.matched == 0
    assert all("wait_us" not in share for share in shares.values())
    assert any("data-parallel replicas" in note for note in found.notes)


def test_a_missing_rank_is_said(tmp_path: Path) -> None:
    facts = {rank: ONE_HOST[rank] for rank in (0, 2)}
    made = bundle(tmp_path / "b", Play(), facts, parallel=FOUR)
    found, _ = collectives_of(made)
    assert found.matched == len(KINDS) * 40
    assert found.notes[0].startswith("Ranks 1, 3 of the run are not in this bundle.")


def test_a_step_that_one_rank_lacks(tmp_path: Path) -> None:
    play = Play(ranks=2)
    folder = write(tmp_path / "b", play, {0: {}, 1: {}}, parallel=parallel(tensor=2))
    path = folder / "pieces" / "rank1.00000.steps.npy"
    np.save(path, np.load(path)[:-3])
    found, _ = collectives_of(assemble(folder, state="complete"))
    assert (found.steps, found.steps_left_out, found.matched) == (37, 3, 37 * len(KINDS))
    assert "3 steps" in found.notes[0]


def test_one_rank_has_nothing_to_say(tmp_path: Path) -> None:
    made = Recorded({0: [eager_decode()]}).assemble(tmp_path / "b")
    found, shares = collectives_of(made)
    assert (found.matched, found.clocks, found.notes, shares) == (0, (), (), {})

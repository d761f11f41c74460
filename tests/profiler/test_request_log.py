"""Requests as they are recorded and analyzed, against what a scheduler made by hand did."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from spark_prof.analyzers.requests.request_times import request_times, token_gaps
from spark_prof.analyzers.requests.served import served_of
from spark_prof.profiler import engine as engine_module
from spark_prof.profiler.engine import EngineRecording
from spark_prof.profiler.process import Process
from spark_prof.profiler.settings import Settings
from spark_prof.traces.bundle import SCHEMA, Bundle, Meta, TableFiles
from spark_prof.traces.chunk_files import load_array
from spark_prof.traces.chunk_tables import PieceTables, engine_frame
from spark_prof.traces.chunks import ENGINE_DTYPE, pieces_folder

from .request_scheduler import Clock, FakeScheduler, Request

SEEDS = range(4)


def bundle_of(folder: Path) -> Bundle:
    """The tables of the scheduler's process alone."""
    with TableFiles(folder) as tables:
        pieces = PieceTables(pieces_folder(folder), tables)
        pieces.add_process({"process": "engine0", "rank": 0})
    assert not pieces.lost
    facts = json.loads((pieces_folder(folder) / "engine0.facts.json").read_text())
    Meta(
        SCHEMA, "0", "complete", (), "", "none", facts={"engine0": facts}, tables=tables.rows
    ).write(folder)
    return Bundle(folder)


class Ran:
    """A recorded run of the scheduler and its bundle."""

    def __init__(self, folder: Path, seed: int, patch: pytest.MonkeyPatch, **how: Any) -> None:
        clock = Clock()
        patch.setattr(engine_module.time, "time_ns", clock)
        self.scheduler = scheduler = FakeScheduler(clock, seed)
        chance = scheduler.chance
        settings = Settings(str(folder / "b"), faults=how.get("faults", ()))
        self.before = how.get("before", 0)
        arrived = [self._request(n, clock, chance) for n in range(self.before)]
        for request in arrived:
            scheduler.add_request(request)
        self.recording = EngineRecording(scheduler, settings, Process(settings, "engine0", 0))
        if self.before:
            for _ in range(2):
                scheduler.update_from_output(scheduler.schedule(), lambda: 1)
        self.first = len(scheduler.times)
        self.recording.install()
        number = self.before
        for _ in range(how.get("batches", 90)):
            while number < 24 and chance.random() < 0.4:
                request = self._request(number, clock, chance)
                request.ends_as = "length"
                queued = clock.now + 1
                scheduler.add_request(request)
                request.queued = queued  # type: ignore[attr-defined]
                number += 1
            if scheduler.requests and chance.random() < 0.03:
                scheduler.abort(chance.choice(list(scheduler.requests.values())))
            if scheduler.requests:
                output = scheduler.schedule()
                if output.total_num_scheduled_tokens:
                    scheduler.update_from_output(output, lambda: chance.choice((1, 1, 1, 2, 3)))
            else:
                clock.now += 500
        self.recording.finish()
        patch.undo()
        self.bundle = bundle_of(folder / "b")

    @staticmethod
    def _request(number: int, clock: Clock, chance: Any) -> Request:
        arrival = (clock.now - chance.randrange(1000, 9000)) / 1e9
        prompt = chance.randrange(1, 200)
        return Request(f"r{number}", arrival, prompt, chance.randrange(1, 30),
                       cached=min(16 * chance.randrange(3), prompt - 1))  # fmt: skip


@pytest.fixture(params=SEEDS)
def ran(request: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ran:
    return Ran(tmp_path, request.param, monkeypatch)


def rows_of(bundle: Bundle, table: str) -> pd.DataFrame:
    return bundle.frame(table, 0)


def test_every_request_is_written_down_as_it_was(ran: Ran) -> None:
    found = rows_of(ran.bundle, "engine_requests").sort_values("request")
    truth = ran.scheduler.every
    assert len(found) == len(truth)
    batches = ran.scheduler.times
    for row, request in zip(found.itertuples(), truth, strict=True):
        assert row.queued_ns == request.queued
        assert row.arrival_ns == int(request.arrival_time * 1e9)
        assert row.prompt_tokens == request.num_prompt_tokens
        assert row.scheduled_ns == request.scheduled
        assert row.cached_tokens == (request.cached if request.scheduled else -1)
        assert row.output_tokens == sum(count for _, count in request.tokens)
        assert row.preemptions == request.num_preemptions
        got = [batches[number][1] for number, _ in request.tokens]
        assert row.first_token_ns == (got[0] if got else 0)
        assert row.last_token_ns == (got[-1] if got else 0)
        assert row.preempted_ns == sum(a[1] - a[0] for a in request.away if len(a) > 1)
        unfinished = request.request_id in ran.scheduler.requests
        assert row.finish == ("" if unfinished else request.ends_as)
        assert (row.end_ns > 0) == (not unfinished)


def test_runs_hold_every_batch_of_every_request_once(ran: Ran) -> None:
    runs = rows_of(ran.bundle, "request_steps")
    iterations = [number for number, (_, taken, tokens) in enumerate(ran.scheduler.times) if taken]
    for number, request in enumerate(ran.scheduler.every):
        own = runs[runs["request"] == number].sort_values("first")
        read = own[own["read_tokens"] > 0]
        chunks = [(iterations[n], t) for n, t in read[["first", "read_tokens"]].to_numpy()]
        assert chunks == request.chunks
        assert (read["first"] == read["last"]).all()
        covered = [
            iterations[n]
            for first, last in own.loc[own["output_tokens"] > 0, ["first", "last"]].to_numpy()
            for n in range(first, last + 1)
        ]
        assert covered == [batch for batch, _ in request.tokens]
        assert own["output_tokens"].sum() == sum(count for _, count in request.tokens)


def test_batches_know_their_load_and_limit(ran: Ran) -> None:
    engine = rows_of(ran.bundle, "engine")
    taken = [number for number, (_, taken, _) in enumerate(ran.scheduler.times) if taken]
    assert engine["limit"].astype(str).tolist() == [ran.scheduler.limits[n] for n in taken]
    assert engine["iteration"].tolist() == list(range(len(taken)))
    assert (engine["free_blocks"] == 100).all()
    assert engine["running"].between(1, 4).all()


def test_parts_of_the_first_token_are_those_of_a_walk_through_time(ran: Ran) -> None:
    """Nanosecond by nanosecond: what was the request doing until its first token?"""
    found = request_times(ran.bundle, 0).sort_values("request")
    batches = ran.scheduler.times
    whole = 0
    for row, request in zip(found.itertuples(), ran.scheduler.every, strict=True):
        if row.state != "whole":
            continue
        whole += 1
        first = batches[request.tokens[0][0]][1]
        share = {n: t / batches[n][2] for n, t in request.chunks}
        own = shared = away = between = 0.0
        for now in range(request.scheduled, first):
            batch = next((n for n in share if batches[n][0] <= now < batches[n][1]), None)
            if batch is not None:
                own, shared = own + share[batch], shared + 1 - share[batch]
            elif any(a[0] <= now < a[-1] for a in request.away if len(a) > 1):
                away += 1
            else:
                between += 1
        got = (row.own_us, row.shared_us, row.preempted_us, row.between_us)
        assert got == pytest.approx([ns / 1e3 for ns in (own, shared, away, between)], abs=0.02)
        arrived = int(request.arrival_time * 1e9)
        assert row.ttft_us == pytest.approx((first - arrived) / 1e3)
        assert row.front_end_us == pytest.approx((request.queued - arrived) / 1e3)
        assert row.queue_us == pytest.approx((request.scheduled - request.queued) / 1e3)
    assert whole > 5


def test_gaps_between_tokens_and_what_a_token_takes(ran: Ran) -> None:
    found = request_times(ran.bundle, 0)
    whole = found[found["state"] == "whole"].sort_values("request")
    batches, expected = ran.scheduler.times, []
    for row in whole.itertuples():
        request = ran.scheduler.every[row.request]
        got = np.array([batches[number][1] for number, _ in request.tokens])
        expected += (np.diff(got) / 1e3).tolist()
        tokens = sum(count for _, count in request.tokens)
        if tokens > 1:
            assert row.tpot_us == pytest.approx((got[-1] - got[0]) / 1e3 / (tokens - 1))
    assert sorted(token_gaps(ran.bundle, 0, whole)) == pytest.approx(sorted(expected))


def test_a_summary_counts_every_request_and_its_parts_add_up(ran: Ran) -> None:
    served = served_of(ran.bundle)
    assert served is not None
    assert served.ttft is not None
    assert served.requests == len(ran.scheduler.every)
    states = (served.whole, served.aborted, served.failed, served.cut, served.tokenless)
    assert sum(states) == served.requests
    assert served.aborted == sum(r.ends_as == "abort" for r in ran.scheduler.every)
    assert served.cut == len(ran.scheduler.requests)
    for name in ("mean", "p50", "p90", "p99"):
        together = sum(getattr(part, name) for part in served.parts)
        assert together == pytest.approx(getattr(served.ttft, name))
    assert sum(row.share for row in served.limits) == pytest.approx(1.0)


def test_requests_that_had_begun_before_are_told_as_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = Ran(tmp_path, 3, monkeypatch, before=6, batches=60)
    found = request_times(ran.bundle, 0).sort_values("request")
    begun = [n for n, r in enumerate(ran.scheduler.every[:6]) if r.scheduled]
    known = {r.request_id: r for r in ran.scheduler.every}
    assert begun
    for row in found.itertuples():
        if row.queued_ns == 0 and row.scheduled_ns == 0:
            assert row.state in ("cut", "aborted")
    late = found[found["queued_ns"] > 0]
    assert len(late) == len(known) - 6
    # One that waited when the recording began is whole: its time in the queue is known.
    waited = found[(found["queued_ns"] == 0) & (found["scheduled_ns"] > 0)]
    assert len(waited) > 0
    assert (waited.loc[waited["state"] == "whole", "front_end_us"] == 0).all()


def test_pieces_of_an_earlier_spark_prof_are_read_and_tell_no_load(tmp_path: Path) -> None:
    later = ("iteration", "running", "waiting", "free_blocks", "limit")
    old = [(name, ENGINE_DTYPE[name]) for name in ENGINE_DTYPE.names or () if name not in later]
    rows = np.array([(7, 100, 200, 5, 1, 1, 0)], dtype=old)
    np.save(tmp_path / "engine0.00000.engine.npy", rows)
    frame = engine_frame(load_array(tmp_path / "engine0.00000.engine.npy", ENGINE_DTYPE))
    assert frame["scheduled_tokens"].tolist() == [5]
    assert frame[list(later[:-1])].to_numpy().tolist() == [[-1, -1, -1, -1]]
    assert frame["limit"].tolist() == [""]


def test_a_bundle_without_requests_has_no_summary(tmp_path: Path) -> None:
    Meta(SCHEMA, "0", "complete", (), "", "none").write(tmp_path)
    assert served_of(Bundle(tmp_path)) is None


def test_a_hook_of_requests_that_fails_leaves_the_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = Ran(tmp_path, 1, monkeypatch, batches=20, faults=("requests",))
    engine = rows_of(ran.bundle, "engine")
    assert len(engine) == len([taken for _, taken, _ in ran.scheduler.times if taken])
    assert set(engine["limit"].astype(str)) == {""}
    assert set(engine["running"]) == {-1}
    assert served_of(ran.bundle) is None


def test_what_fails_later_lets_go_of_the_engine_s_requests(tmp_path: Path) -> None:
    scheduler = FakeScheduler(Clock(), 1)
    settings = Settings(str(tmp_path / "b"))
    recording = EngineRecording(scheduler, settings, Process(settings, "engine0", 0))
    recording.install()
    scheduler.add_request(Request("r", 1.7e9, 8, 4))
    assert recording._requests is not None
    recording.fence.disable("requests", RuntimeError("as if a hook had failed"))
    recording.flush_when_quiet()
    assert recording._requests is None
    output = scheduler.schedule()
    assert output.total_num_scheduled_tokens == 8
    scheduler.update_from_output(output, lambda: 1)
    recording.finish()


def test_runs_that_overlap_give_no_gaps(ran: Ran, monkeypatch: pytest.MonkeyPatch) -> None:
    """A damaged file must not take more memory than its batches account for."""
    frame = Bundle.frame

    def damaged(self: Bundle, table: str, *rest: Any) -> pd.DataFrame:
        found = frame(self, table, *rest)
        if table == "request_steps":
            found = found.assign(first=0, last=int(found["last"].max()), output_tokens=1)
        return found

    found = request_times(ran.bundle, 0)
    monkeypatch.setattr(Bundle, "frame", damaged)
    assert len(token_gaps(ran.bundle, 0, found)) == 0

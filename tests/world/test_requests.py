"""The times of requests are those that a count of every nanosecond gives."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings

from spark_prof.analyzers.requests.request_times import request_times, token_gaps
from spark_prof.analyzers.requests.served import served_of
from tests.world.served_world import PARTS, Batch, Request, Served, served
from tests.world.truth import percentile

MANY = settings(max_examples=10 * settings().max_examples)


@MANY
@given(served())
def test_each_nanosecond_until_the_first_token_has_one_owner(world: Served) -> None:
    found = request_times(world.bundle(), 0, 0)
    for row, one in zip(found.itertuples(index=False), world.requests, strict=True):
        _, first, last = world.times_of(one)
        parts = world.parts_of(one)
        assert row.state == world.state_of(one)
        assert {name: 1e3 * getattr(row, f"{name}_us") for name in PARTS} == pytest.approx(parts)
        assert sum(parts.values()) == first - one.arrival
        whole = row.state == "whole"
        assert np.isnan(row.ttft_us) != whole
        assert not whole or 1e3 * row.ttft_us == pytest.approx(first - one.arrival)
        assert np.isnan(row.tpot_us) != (whole and one.tokens > 1)
        if whole and one.tokens > 1:
            assert 1e3 * row.tpot_us == pytest.approx((last - first) / (one.tokens - 1))


@MANY
@given(served())
def test_gaps_are_those_between_batches_that_give_tokens(world: Served) -> None:
    found = token_gaps(world.bundle(), 0, request_times(world.bundle(), 0))
    wanted = [
        (after.update - before.update) / 1e3
        for one in world.requests
        for before, after in zip(
            world.batches[one.reads[-1][0] : one.last],
            world.batches[one.reads[-1][0] + 1 : one.last + 1],
            strict=True,
        )
    ]
    assert sorted(found) == pytest.approx(sorted(wanted))


@pytest.mark.slow
@MANY
@given(served())
def test_a_summary_is_of_these_requests(world: Served) -> None:
    found = served_of(world.bundle(), 0)
    assert found is not None
    states = Counter(world.state_of(one) for one in world.requests)
    counted = ("whole", "aborted", "failed", "cut", "tokenless")
    assert {name: getattr(found, name) for name in counted} == {n: states[n] for n in counted}
    assert found.output_tokens == sum(one.tokens for one in world.requests)
    assert found.preemptions == sum(one.preempted > 0 for one in world.requests)
    known = Counter(b.limit for b in world.batches if b.limit in ("none", "kv", "sequences"))
    rows = [(row.limit, row.batches) for row in found.limits]
    assert dict(rows) == known
    assert rows == sorted(rows, key=lambda row: (-row[1], row[0]))
    assert sum(row.share for row in found.limits) == pytest.approx(1.0 if known else 0.0)
    first = [(world.times_of(one)[1] - one.arrival) / 1e3 for one in world.requests
             if world.state_of(one) == "whole"]  # fmt: skip
    if not first:
        assert found.ttft is None
        assert found.parts == ()
        return
    assert found.ttft is not None
    for name, share in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99)):
        of_first = getattr(found.ttft, name)
        assert of_first == pytest.approx(percentile(first, share))
        assert sum(getattr(part, name) for part in found.parts) == pytest.approx(of_first)
    assert sum(part.mean for part in found.parts) == pytest.approx(sum(first) / len(first))
    assert [p.name for p in found.parts] == [n for n in PARTS if n in {p.name for p in found.parts}]


@pytest.mark.parametrize("blocks", [None, 0, True, 40])
def test_the_load_is_that_of_all_batches(blocks: object) -> None:
    world = Served((Batch(10, 20), Batch(20, 40)), (Request(1, 2, ((0, 8),), 1, 2),),
                   {"engine0": {"scheduler": {"kv_blocks": blocks, "max_num_seqs": 1,
                                              "prefix_caching": False}}})  # fmt: skip
    found = served_of(world.bundle())
    assert found is not None
    assert (found.running, found.most_running, found.waiting, found.most_waiting) == (3, 3, 2, 2)
    assert (found.kv_used, found.kv_blocks) == ((0.75, 40) if blocks == 40 else (None, None))
    assert (found.max_num_seqs, found.max_num_batched_tokens) == (1, None)
    assert found.prefix_caching is False


def test_a_batch_that_was_lost_leaves_the_request_cut() -> None:
    """What was read in it is not known; a later request is whole."""
    late = Request(1, 2, ((1, 8),), 1, 1)
    world = Served((Batch(10, 20), Batch(20, 40)), (Request(1, 2, ((0, 4), (1, 4)), 1, 1), late))
    bundle = world.bundle()
    engine = bundle.frame("engine", 0)
    kept = engine[engine["iteration"] != engine["iteration"].min()]
    inner = bundle.frame

    def frame(name: str, rank: int, columns: list[str] | None = None) -> object:
        table = kept if name == "engine" else inner(name, rank)
        return table if columns is None else table[columns]

    bundle.frame = frame  # type: ignore[method-assign,assignment]
    assert request_times(bundle, 0)["state"].tolist() == ["cut", "whole"]
    assert replace(world, requests=(late,)).state_of(late) == "whole"

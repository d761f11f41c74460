"""The log of requests where a batch is chosen before the one before it has come back."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from spark_prof.profiler.request_log import ChosenBatch, RequestLog, log_requests
from spark_prof.vocabulary import FINISHES

from .fakes import Cached


class Ahead:
    """A scheduler with one request, and a log of it; times are those of the calls."""

    def __init__(self) -> None:
        self.request = SimpleNamespace(
            request_id="r", arrival_time=1.7e9, num_prompt_tokens=16, num_output_tokens=0,
            num_preemptions=0, is_prefill_chunk=False, status=SimpleNamespace(name="WAITING"),
        )  # fmt: skip
        self.scheduler = SimpleNamespace(requests={}, running=[self.request], waiting=[])
        self.log = RequestLog(self.scheduler)
        self.scheduler.requests["r"] = self.request
        self.log.added(self.request, 5)
        self.iteration = 0

    def choose(
        self, at: int, tokens: int, *, more: bool = False, new: bool = False, again: bool = False,
        lost: bool = False,
    ) -> ChosenBatch:  # fmt: skip
        """Chooses a batch with so many tokens of the request, of which it reads more afterwards."""
        self.request.is_prefill_chunk = more
        cached: Any = Cached({} if new else {"r": 0})
        cached.resumed_req_ids = {"r"} if again else set()
        fresh = [SimpleNamespace(req_id="r", num_computed_tokens=4)] if new else []
        return self.log.scheduled(
            SimpleNamespace(
                scheduled_new_reqs=fresh, scheduled_cached_reqs=cached,
                num_scheduled_tokens={"r": tokens} if tokens else {},
                total_num_scheduled_tokens=tokens, finished_req_ids=set(),
                preempted_req_ids={"r"} if lost else set(),
            ),
            at,
        )  # fmt: skip

    def take(self, chosen: ChosenBatch, at: int, tokens: int, *, ends: bool = False) -> None:
        """The batch comes back with so many tokens."""
        self.request.num_output_tokens += tokens
        reason = SimpleNamespace(name="STOP") if ends else None
        item = SimpleNamespace(request_id="r", new_token_ids=[7] * tokens, finish_reason=reason)
        got = {"r": tokens} if tokens else {}
        self.log.updated(chosen, [item] if tokens else [], got, self.iteration, at)
        self.iteration += 1


def test_the_last_chunk_is_read_and_what_was_chosen_after_it_generates() -> None:
    run = Ahead()
    first = run.choose(10, 6, new=True, more=True)
    second = run.choose(20, 6)
    run.take(first, 30, 0)
    third = run.choose(40, 1)
    run.take(second, 50, 1)
    fourth = run.choose(60, 1)
    run.take(third, 70, 1)
    run.take(fourth, 80, 1, ends=True)
    [row], steps = run.log.take()
    assert steps == [(0, 0, 0, 6, 0), (0, 1, 1, 6, 1), (0, 2, 3, 0, 2)]
    stop = FINISHES.index("stop")
    assert row == (0, 1_700_000_000 * 10**9, 5, 10, 50, 80, 80, 16, 4, 3, 0, 0, 0, stop)


def test_a_token_that_comes_after_the_preemption_counts_where_it_was_made() -> None:
    run = Ahead()
    first = run.choose(10, 12, new=True)
    run.take(first, 20, 1)
    second = run.choose(30, 1)
    third = run.choose(40, 1)
    run.take(second, 50, 1)
    fourth = run.choose(60, 0, lost=True)
    run.take(third, 70, 1)
    run.take(fourth, 80, 0)
    run.request.num_preemptions = 1
    fifth = run.choose(90, 19, again=True)
    run.take(fifth, 100, 1)
    run.log.finish()
    [row], steps = run.log.take()
    assert steps == [(0, 0, 0, 12, 1), (0, 1, 2, 0, 2), (0, 4, 4, 19, 1)]
    assert row[3:7] == (10, 20, 100, 0)
    assert row[9:] == (4, 1, 30, 0, 0)


def test_what_shows_no_requests_is_not_logged() -> None:
    assert log_requests(SimpleNamespace(schedule=None)) is None

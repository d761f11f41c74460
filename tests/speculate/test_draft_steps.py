"""The log of a scheduler's steps: drafts chosen, steps counted, requests ended with the plan."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

from spark_prof.ab.messages import DraftStep
from spark_prof.profiler.draft_steps import StepLog

MOST = 4
ACCEPTED = {"a": [0, 2, 4, 1], "b": [3, 0, 1, 1]}
"""Drafts of each request that one step after the other would accept."""


@dataclass
class FakeRequest:
    num_prompt_tokens: int = 10
    num_output_tokens: int = 0
    max_tokens: int = 1000
    finished: bool = False

    def is_finished(self) -> bool:
        return self.finished


@dataclass
class FakeScheduler:
    """Schedules all requests each step, drafts as many as its table says, a step later."""

    num_spec_tokens: int = MOST
    dynamic_sd_lookup: list[int] | None = field(default_factory=lambda: [0, 4, 3, 3])
    requests: dict[str, FakeRequest] = field(default_factory=dict)
    drafts: dict[str, int] = field(default_factory=dict)

    def schedule(self) -> Any:
        names = [name for name, request in self.requests.items() if not request.finished]
        fresh = [name for name in names if not self.requests[name].num_output_tokens]
        spec = {name: [0] * self.drafts[name] for name in names if self.drafts.get(name)}
        count = {name: 10 if name in fresh else 1 + len(spec.get(name, [])) for name in names}
        table = self.dynamic_sd_lookup
        following = self.num_spec_tokens if table is None else table[len(names)]
        self.drafts = dict.fromkeys(names, following)
        return SimpleNamespace(
            num_scheduled_tokens=count,
            scheduled_spec_decode_tokens=spec,
            scheduled_new_reqs=fresh,
        )

    def update_from_output(self, output: Any, result: Any) -> None:
        for at, name in enumerate(output.num_scheduled_tokens):
            request = self.requests[name]
            request.num_output_tokens += len(result.sampled_token_ids[at])
            request.finished = request.num_output_tokens >= request.max_tokens


def played(log: StepLog, scheduler: FakeScheduler, steps: int = 200) -> list[int]:
    """Runs until all requests ended; the tokens that each decoding step gave."""
    emitted, decoded = [], dict.fromkeys(scheduler.requests, 0)
    for _ in range(steps):
        output = scheduler.schedule()
        if not output.num_scheduled_tokens:
            break
        sampled = []
        for name in output.num_scheduled_tokens:
            width = len(output.scheduled_spec_decode_tokens.get(name, []))
            accepted = 0
            if name not in output.scheduled_new_reqs:
                accepted = min(width, ACCEPTED[name][decoded[name] % 4])
                decoded[name] += 1
            sampled.append([7] * (1 + accepted))
        if not output.scheduled_new_reqs:
            emitted.append(sum(map(len, sampled)))
        place = {name: at for at, name in enumerate(output.num_scheduled_tokens)}
        result = SimpleNamespace(sampled_token_ids=sampled, req_id_to_index=place)
        scheduler.update_from_output(output, result)
    return emitted


def logged(**more: Any) -> tuple[StepLog, FakeScheduler]:
    scheduler = FakeScheduler(requests={"a": FakeRequest(), "b": FakeRequest()}, **more)
    log = StepLog(scheduler)
    log.install()
    return log, scheduler


def test_each_step_has_the_drafts_of_the_plan_and_requests_end_with_it() -> None:
    log, scheduler = logged()
    log.start([(3, 4), (0, 3), (2, 5)], 2)
    tokens = played(log, scheduler)
    assert all(request.finished for request in scheduler.requests.values())
    rows = [DraftStep(*row) for row in log.rows()[0]]
    decoding = [row for row in rows if row.requests == 2]
    assert len(decoding) == 12 + 1  # the step that ends them, too
    widths = [row.most for row in decoding]
    assert widths == [row.fewest for row in decoding]
    assert widths == [3, 3, 3, 3, 3, 0, 0, 0, 2, 2, 2, 2, 2][: len(widths)]
    assert [row.tokens for row in decoding] == tokens
    assert [row.drafts for row in decoding] == [2 * width for width in widths]
    assert all(later.at_ns >= row.at_ns for row, later in pairwise(rows))


def test_requests_are_counted_by_position() -> None:
    log, scheduler = logged()
    for request in scheduler.requests.values():
        request.max_tokens = 20
    log.start([], 0, MOST)
    played(log, scheduler)
    counted = log.rows()[1]
    for (steps, drafted, accepted), name in zip(counted, ("a", "b"), strict=True):
        took = [min(MOST, ACCEPTED[name][at % 4]) for at in range(steps)]
        assert drafted == [steps] * MOST
        assert accepted == [sum(many > place for many in took) for place in range(MOST)]


def test_without_a_plan_the_engines_own_table_is_left_alone() -> None:
    log, scheduler = logged()
    log.start([(1, 2)], 2)
    played(log, scheduler)
    for request in scheduler.requests.values():
        request.num_output_tokens, request.finished, request.max_tokens = 0, False, 8
    log.start([], 0)
    played(log, scheduler)
    assert scheduler.dynamic_sd_lookup == [0, 4, 3, 3]
    assert {row[3] for row in log.rows()[0] if row[1] == 2} == {3}


def test_an_engine_with_one_number_of_drafts_is_counted_all_the_same() -> None:
    log, scheduler = logged(dynamic_sd_lookup=None)
    log.start([(MOST, 6)], 2)
    played(log, scheduler)
    assert {row[2] for row in log.rows()[0] if row[1] == 2} == {MOST}
    assert all(request.finished for request in scheduler.requests.values())


def test_steps_that_prefill_are_marked() -> None:
    log, scheduler = logged()
    log.start([(1, 3)], 2)
    played(log, scheduler)
    assert log.rows()[0][0][1] == -1
